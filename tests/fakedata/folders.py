"""Layouts made by other tools, and somebody's own folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from crispseg.data import known
from tests.fakedata.scenes import erode, paint, save, scene

OWN_NAMES = ("meadow", "water", "roof")
OWN_COLOURS = ((10, 200, 10), (0, 0, 250), (200, 30, 30))


def fake_mmseg(root: Path, dataset: str) -> Path:
    """img_dir and ann_dir with two 32 px crops of every tile; label 0 is the boundary, classes from 1."""
    rng = np.random.default_rng(4)
    train, test = {
        "potsdam": (known.POTSDAM_TRAIN, known.POTSDAM_TEST),
        "vaihingen": (known.VAIHINGEN_TRAIN, known.VAIHINGEN_TEST),
        "loveda": (tuple(map(str, range(4))), tuple(map(str, range(4, 7)))),
    }[dataset]
    for split, tiles in (("train", train), ("val", test)):
        for tile in tiles:
            for left in (0,) if dataset == "loveda" else (0, 32):
                name = tile if dataset == "loveda" else f"{tile}_{left}_0_{left + 32}_32"
                image, ids = scene(rng, (32, 32), classes=len(known.TABLES[dataset].names))
                labels = ids + 1 if dataset == "loveda" else np.where(erode(ids) == 255, 0, ids + 1).astype(np.uint8)
                save(root / "img_dir" / split / f"{name}.png", image)
                save(root / "ann_dir" / split / f"{name}.png", labels)
    return root


def fake_geoseg_patches(root: Path) -> Path:
    """GeoSeg's Potsdam patches, 32 px: full labels in train; in test eroded ones (6), and black padding labelled 0."""
    rng = np.random.default_rng(5)
    for tile in (*known.POTSDAM_TRAIN, *known.POTSDAM_TEST):
        split = "test" if tile in known.POTSDAM_TEST else "train"
        for patch in range(2):
            image, ids = scene(rng, (32, 32))
            labels = erode(ids, 6) if split == "test" else ids
            if split == "test":
                image[:5], labels[:5] = 0, 0
            save(root / split / "images_1024" / f"top_potsdam_{tile}_0_{patch}.tif", image)
            save(root / split / "masks_1024" / f"top_potsdam_{tile}_0_{patch}.png", labels)
    return root


def fake_own(
    root: Path, colour: bool = False, images: int = 6, size: tuple[int, int] = (72, 88), bands: int = 3
) -> Path:
    """images/ and masks/ of three classes, as colours with classes.csv or as ids without a table."""
    rng = np.random.default_rng(6)
    for number in range(images):
        image, ids = scene(rng, size, classes=3, bands=bands)
        name = f"site{number // 2}_part{number % 2}"
        save(root / "images" / f"{name}.png", image)
        save(root / "masks" / f"{name}.png", paint(ids, OWN_COLOURS) if colour else ids)
    if colour:
        rows = [f"{name},{r},{g},{b}" for name, (r, g, b) in zip(OWN_NAMES, OWN_COLOURS, strict=True)]
        (root / "classes.csv").write_text("\n".join(["name,r,g,b", *rows]) + "\n")
    return root
