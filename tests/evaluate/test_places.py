"""Where a window lies on the Earth, beside the transform of its file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

from crispseg.data import open_folder
from crispseg.evaluate.places import _place, _whole, coordinates
from crispseg.evaluate.result import Evaluation
from crispseg.evaluate.worst import WorstWindow
from tests.fakedata import fake_own

rasterio = pytest.importorskip("rasterio")
warp = pytest.importorskip("rasterio.warp")


def placed(root: Path, **place: Any) -> Evaluation:
    """What `coordinates` asks an evaluation: its single wide image is a GeoTIFF, of which parts validate."""
    fake_own(root, images=1, size=(100, 300))
    (path,) = (root / "images").iterdir()
    pixels = np.moveaxis(np.asarray(Image.open(path)), 2, 0)
    facts = {"driver": "GTiff", "count": 3, "height": 100, "width": 300, "dtype": "uint8", **place}
    with rasterio.open(path.with_suffix(".tif"), "w", **facts) as file:
        file.write(pixels)
    path.unlink()
    return cast(Evaluation, SimpleNamespace(folder=open_folder(root), conditions=SimpleNamespace(split="val")))


def seen(top: int, left: int) -> WorstWindow:
    nothing = np.zeros((20, 30), np.uint8)
    return WorstWindow(0, "a", top, left, 1, 1, 1.0, nothing, nothing, nothing)


def test_a_place_is_the_middle_of_its_window(tmp_path: Path) -> None:
    turned = rasterio.Affine(0.5, 0.1, 400_000, 0.1, -0.5, 5_000_000)
    evaluation = placed(tmp_path, crs="EPSG:32633", transform=turned)
    assert evaluation.folder is not None
    part = evaluation.folder.records("val")[0].window
    assert part is not None and part.left > 0
    place = turned @ (part.left + 40 + 15, 10 + 10)
    (longitude,), (latitude,) = warp.transform("EPSG:32633", "EPSG:4326", [place[0]], [place[1]])
    assert coordinates(evaluation, seen(10, 40)) == f"{latitude:.6f}, {longitude:.6f}"


def test_maps_of_parts_are_in_the_size_of_their_file(tmp_path: Path) -> None:
    evaluation = placed(tmp_path, crs="EPSG:32633", transform=rasterio.Affine(0.5, 0, 400_000, 0, -0.5, 5_000_000))
    assert evaluation.folder is not None
    (record,) = evaluation.folder.records("val")
    assert record.window is not None
    left, width = record.window.left, record.window.width
    place = _place(evaluation, 0, seen(10, 40))
    assert [place[key] for key in ("top", "left", "height", "width")] == [10, left + 40, 20, 30]
    whole = _whole(record, np.full((100, width), 3, np.uint8))
    assert whole.shape == (100, 300)
    assert (whole[:, left : left + width] == 3).all() and (whole == 255).sum() == 100 * (300 - width)


def test_a_file_that_does_not_say_where_it_lies_has_no_place(tmp_path: Path) -> None:
    transform = rasterio.Affine(0.5, 0, 7, 0, -0.5, 9)
    assert coordinates(placed(tmp_path, transform=transform), seen(0, 0)) == ""
