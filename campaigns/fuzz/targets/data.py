"""Data folders, archives, and what `crisp prepare` leaves."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image
from tests.fakedata.folders import fake_own

from campaigns.fuzz.targets.base import Target
from campaigns.fuzz.targets.pictures import pixels, save, write


def targets() -> list[Target]:
    from crispseg.data.dataset import SegmentationDataset
    from crispseg.data.folder import open_folder
    from crispseg.data.inspection import inspect

    def own(folder: Path) -> None:
        fake_own(folder, colour=True, images=2, size=(16, 24))

    def look(folder: Path) -> None:
        str(inspect(folder))
        open_folder(folder).statistics()

    def cached(folder: Path) -> None:
        data = SegmentationDataset(open_folder(folder / "data"), "train", cache=folder / "cache")
        data.arrays[0]

    def make_cached(folder: Path) -> None:
        fake_own(folder / "data", images=4, size=(16, 24))
        cached(folder)

    folder_files = ("classes.csv", "images/site0_part0.png", "masks/site0_part1.png")
    return [
        Target("data folder", own, folder_files, look, share=2),
        Target("archive", _zipped, ("loveda.zip",), _prepare, share=2),
        Target("prepared folder", _prepared, ("out/dataset.json", "out/split.csv"), lambda f: _open(f / "out")),
        Target("journal of prepare", _half_prepared, ("out/.prepare.jsonl",), _prepare, share=2),
        Target("shards", _shards, ("train.npz", "classes.txt"), _read_shards, share=2),
        Target("drawn labels", _drawn, ("labels.geojson", "labels.gpkg"), _burn, share=2),
        Target("cached arrays", make_cached, ("cache/0", "cache/1"), cached, share=2),
    ]


def _shards(folder: Path) -> None:
    """Two encoded pictures and their labels, as `crisp pretrain` reads them."""
    pictures = []
    for number in range(2):
        save(folder / "x.png", "uint8", 3)
        pictures.append((folder / "x.png").read_bytes() + bytes(number))
        (folder / "x.png").unlink()
    offsets = np.cumsum([0, *map(len, pictures)])
    data = np.frombuffer(b"".join(pictures), np.uint8)
    np.savez(folder / "train.npz", data=data, offsets=offsets, labels=np.array([0, 1]))
    (folder / "classes.txt").write_text("a\nb\n")


def _read_shards(folder: Path) -> None:
    from crispseg.pretrain.sources import open_source

    pictures, _ = open_source(folder, labelled=True, side=16)
    for index in range(len(pictures)):
        pictures.read(index)


def _drawn(folder: Path) -> None:
    """An orthophoto and two polygons with their classes, in two formats."""
    import pyogrio.raw
    import shapely

    write(folder / "ortho.tif", "uint8", 3, 40, crs="EPSG:32633", transform=(0.5, 0, 4e5, 0, -0.5, 5e6))
    shapes = shapely.to_wkb([shapely.box(4e5 + a, 5e6 - 12, 4e5 + a + 6, 5e6 - 2) for a in (1, 10)])
    for name, driver in (("labels.geojson", "GeoJSON"), ("labels.gpkg", "GPKG")):
        kinds = [np.array(["roof", "road"], object)]
        pyogrio.raw.write(
            folder / name, geometry=shapes, field_data=kinds, fields=["kind"], crs="EPSG:32633",
            geometry_type="Polygon", driver=driver,
        )  # fmt: skip


def _burn(folder: Path) -> None:
    import shutil

    from crispseg.geo.labels.vector import VectorChoice, prepare_vector

    for name in ("labels.geojson", "labels.gpkg"):
        shutil.rmtree(folder / "out", ignore_errors=True)
        prepare_vector(
            [str(folder / "ortho.tif")], VectorChoice(str(folder / name), "kind", chip=32), str(folder / "out")
        )


def _open(folder: Path) -> None:
    from crispseg.data.folder import open_folder

    opened = open_folder(folder)
    opened.statistics(next(split for split, records in opened.splits.items() if records))


def _zipped(folder: Path) -> None:
    """LoveDA's layout of three tiny images in one archive."""
    with zipfile.ZipFile(folder / "loveda.zip", "w") as archive:
        for number, split in enumerate(("Train", "Train", "Val")):
            for part, values in (("images_png", pixels("uint8", 3, 8)), ("masks_png", pixels("uint8", 1, 8))):
                picture = folder / "x.png"
                Image.fromarray(values).save(picture)
                archive.write(picture, f"{split}/Urban/{part}/{number}.png")
                picture.unlink()


def _prepare(folder: Path) -> None:
    from crispseg.data.prepare import Choices, check, make_plan, prepare

    choices = Choices("full", allow_missing=True)
    plan = make_plan("loveda", folder / "loveda.zip", choices)
    check(plan)
    prepare(plan, folder / "out", choices)


def _prepared(folder: Path) -> None:
    _zipped(folder)
    _prepare(folder)


def _half_prepared(folder: Path) -> None:
    _prepared(folder)
    manifest = json.loads((folder / "out" / "dataset.json").read_text())
    lines = [{"kind": f"{manifest['dataset']} in the {manifest['layout']} layout"}, *manifest["images"][:2]]
    (folder / "out" / ".prepare.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "out" / "dataset.json").unlink()
