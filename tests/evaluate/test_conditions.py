"""What stands beside a score, and what is refused before anything is computed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import rasterio

from crispseg.data.folder import Folder, open_folder
from crispseg.errors import UserError
from crispseg.evaluate.conditions import Conditions, Settings, settle
from tests.evaluate.toy import labels, write_folder
from tests.geo.rasters import UTM, random_pixels, write_raster


def settled(folder: Folder, **choices: Any) -> Conditions:
    return settle(Settings(**choices), folder, "val")


def scaled(folder: Folder, resolution: float | None) -> Folder:
    copy = Folder(folder.root, folder.table, folder.protocol, folder.splits, (folder.bands, folder.dtype))
    copy.protocol = dataclasses.replace(folder.protocol, resolution=resolution)
    return copy


def test_the_line_carries_all_that_a_score_depends_on(folder: Folder) -> None:
    conditions = settled(folder)
    protocol = folder.protocol
    for part in (
        f"{protocol.name} #{protocol.hash}",
        "val (3 tiles)",
        "3 classes averaged",
        "full labels",
        "global confusion",
        "tile 512 overlap 256",
        "TTA none",
        "3 images",
        "within 3 px",
    ):
        assert part in conditions.line
    assert conditions.to_dict()["line"] == conditions.line and conditions.to_dict()["hash"] == protocol.hash


def test_other_windows_are_told_and_keep_the_protocols_hash(folder: Folder) -> None:
    line = settled(folder, tile=64).line
    assert f"#{folder.protocol.hash}" in line
    assert "tile 64 overlap 16" in line and "(the protocol has tile 512 overlap 256)" in line
    assert "whole images" in settled(folder, tile=0).line


@pytest.mark.parametrize(
    ("choices", "tile", "overlap"),
    [
        ({}, 512, 256),
        ({"tile": 100}, 100, 25),
        ({"tile": 0}, 0, 0),
        ({"overlap": 10}, 512, 10),
        ({"tile": 0, "overlap": 9}, 0, 0),
    ],
)
def test_windows(folder: Folder, choices: dict[str, int], tile: int, overlap: int) -> None:
    conditions = settled(folder, **choices)
    assert (conditions.tile, conditions.overlap) == (tile, overlap)


@pytest.mark.parametrize(
    ("text", "resolution", "pixels", "metres"),
    [
        ("3px", None, 3, None),
        ("3", 0.09, 3, 0.27),
        ("2.5 px", None, 2.5, None),
        ("0.5m", 0.1, 5, 0.5),
        ("1 m", 0.3, 1 / 0.3, 1),
    ],
)
def test_tolerance(folder: Folder, text: str, resolution: float | None, pixels: float, metres: float | None) -> None:
    conditions = settled(scaled(folder, resolution), tolerance=text)
    assert conditions.tolerance == pytest.approx(pixels)
    assert conditions.metres == (None if metres is None else pytest.approx(metres))


def test_metres_where_the_images_alone_tell_the_scale(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "own", {f"site{n}": (labels(n, (40, 50)),) * 2 for n in range(2)})

    def refer(name: str, times: float) -> None:
        (root / "images" / f"{name}.png").unlink(missing_ok=True)
        along, across = 0.4 * times, 0.3 * times  # turned: a pixel's side of half a metre goes 0.4 and 0.3 m over
        turned = rasterio.Affine(along, across, 400_000, across, -along, 5_000_000)
        pixels = random_pixels(3, 40, 50)
        write_raster(root / "images" / f"{name}.tif", pixels, crs=UTM["crs"], transform=turned)

    refer("site0", 1)
    with pytest.raises(UserError, match="needs data with a known scale"):
        settled(open_folder(root), tolerance="1.5m")  # the other is a picture
    refer("site1", 1)
    conditions = settled(open_folder(root), tolerance="1.5m")
    assert (conditions.tolerance, conditions.metres) == (pytest.approx(3), pytest.approx(1.5))
    assert conditions.line.endswith("within 3 px (1.5 m)")
    refer("site1", 2)
    with pytest.raises(UserError, match=r"pixels of these images are 0\.5 to 1 m.*give it in pixels"):
        settled(open_folder(root), tolerance="1.5m")


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"tile": -1}, "tile size must be at least 0"),
        ({"tile": 32, "overlap": 32}, "less than the tile size 32, not 32"),
        ({"tta": "flips"}, "unknown test-time augmentation 'flips'; did you mean 'flip'?"),
        ({"scales": (0.0, 1.0)}, "scales must be more than 0"),
        ({"tolerance": "three"}, "'three' is no length"),
        ({"tolerance": "0.5m"}, "needs data with a known scale"),
        ({"tolerance": "0.2px"}, "at least one pixel"),
        ({"worst": -1}, "at least 0, not -1"),
    ],
)
def test_refusals(folder: Folder, choices: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        settled(folder, **choices)


def test_a_split_without_labels_is_refused(folder: Folder) -> None:
    bare = scaled(folder, None)
    bare.splits = {"val": tuple(dataclasses.replace(r, masks={}) for r in folder.records("val"))}
    with pytest.raises(UserError, match="3 of 3 images in the val split of .* have no full labels .* e.g. site0"):
        settled(bare)
