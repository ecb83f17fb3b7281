"""Potsdam, Vaihingen and LoveDA as they are distributed, unpacked or as zip archives."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import numpy as np

from crispseg.data import known
from tests.fakedata.scenes import erode, paint, save, scene


def fake_potsdam(root: Path, zipped: bool = False, compositions: tuple[str, ...] = ("RGB",)) -> Path:
    """All 38 tiles: 2_Ortho_RGB (or other compositions), 5_Labels_all, 5_Labels_all_noBoundary."""
    rng = np.random.default_rng(1)
    for tile in known.POTSDAM_TILES:
        image, ids = scene(rng)
        stem = f"top_potsdam_{tile}"
        for kind in compositions:
            bands = np.concatenate([image, image[..., :1]], -1) if kind == "RGBIR" else image
            save(root / f"2_Ortho_{kind}" / f"{stem}_{kind}.tif", bands)
        save(root / "5_Labels_all" / f"{stem}_label.tif", paint(ids, known.ISPRS.colours))
        save(root / "5_Labels_all_noBoundary" / f"{stem}_label_noBoundary.tif", paint(erode(ids), known.ISPRS.colours))
    return _zip_folders(root) if zipped else root


def fake_vaihingen(root: Path, zipped: bool = False) -> Path:
    """All 33 areas: top and gts_for_participants (16 of them) in one archive, the complete labels in two more."""
    rng = np.random.default_rng(2)
    main = "ISPRS_semantic_labeling_Vaihingen"
    for area in known.VAIHINGEN_TILES:
        image, ids = scene(rng, (70, 90))
        full, eroded = paint(ids, known.ISPRS.colours), paint(erode(ids), known.ISPRS.colours)
        stem = f"top_mosaic_09cm_{area}"
        save(root / main / "top" / f"{stem}.tif", image)
        if area in known.VAIHINGEN_TRAIN:
            save(root / main / "gts_for_participants" / f"{stem}.tif", full)
        save(root / f"{main}_ground_truth_COMPLETE" / f"{stem}.tif", full)
        save(root / f"{main}_ground_truth_eroded_COMPLETE" / f"{stem}_noBoundary.tif", eroded)
    return _zip_folders(root, keep_name=False) if zipped else root


def fake_loveda(root: Path, zipped: bool = False, each: int = 3) -> Path:
    """Train, Val and Test, urban and rural; Test has no labels. File values: 0 no data, 1 to 7 the classes."""
    rng = np.random.default_rng(3)
    number = 0
    for split in ("Train", "Val", "Test"):
        for place in ("Urban", "Rural"):
            for _ in range(each):
                image, ids = scene(rng, (64, 64), classes=8)
                save(root / split / place / "images_png" / f"{number}.png", image)
                if split != "Test":
                    save(root / split / place / "masks_png" / f"{number}.png", ids)
                number += 1
    return _zip_folders(root) if zipped else root


def _zip_folders(root: Path, keep_name: bool = True) -> Path:
    """Each folder of `root` becomes an archive beside the others."""
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        with zipfile.ZipFile(root / f"{folder.name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(folder.rglob("*.*")):
                archive.write(file, file.relative_to(root if keep_name else folder))
        shutil.rmtree(folder)
    return root
