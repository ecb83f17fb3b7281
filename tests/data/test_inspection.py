"""The look at a folder, against counting by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crispseg.data import inspect
from crispseg.errors import UserError
from tests.fakedata import fake_own


def test_report_counts_what_is_there(tmp_path: Path) -> None:
    root = fake_own(tmp_path / "mine", colour=True)
    report = inspect(root)
    images = [np.asarray(Image.open(path)) for path in (root / "images").iterdir()]
    pixels = np.concatenate([image.reshape(-1, 3) for image in images]).astype(float)
    assert report.images == 6 and report.pixels == len(pixels)
    assert dict(report.sizes) == {"88 x 72": 6} and dict(report.kinds) == {"3 bands of uint8": 6}
    assert report.statistics is not None
    assert np.allclose(report.statistics.mean, pixels.mean(0)) and np.allclose(report.statistics.std, pixels.std(0))
    masks = np.concatenate([np.asarray(Image.open(p)).reshape(-1, 3) for p in (root / "masks").iterdir()])
    assert report.shares["water"] == pytest.approx((masks == (0, 0, 250)).all(-1).mean())
    assert report.problems == []
    text = str(report)
    assert "meadow" in text and "problems: 0" in text
    assert json.loads(json.dumps(report.to_dict()))["images"] == 6


def test_faults_are_collected_not_raised(tmp_path: Path) -> None:
    root = fake_own(tmp_path / "mine")
    names = sorted(path.stem for path in (root / "images").iterdir())
    (root / "masks" / f"{names[0]}.png").unlink()
    (root / "images" / f"{names[1]}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"0" * 40)
    Image.new("L", (5, 6)).save(root / "masks" / f"{names[2]}.png")
    (root / "images" / f"{names[3]}.png").unlink()
    Image.new("L", (88, 72)).save(root / "images" / f"{names[4]}.png")
    problems = "\n".join(inspect(root).problems)
    assert f"image {names[0]}.png has no mask" in problems
    assert f"{names[1]}.png is cut short" in problems
    assert f"{names[2]}.png is 5 x 6 px, but its image is 88 x 72 px" in problems
    assert f"mask {names[3]}.png has no image" in problems
    assert "images differ in bands or type" in problems


def test_colours_without_a_table_are_a_problem_of_the_report(tmp_path: Path) -> None:
    root = fake_own(tmp_path / "mine", colour=True)
    (root / "classes.csv").unlink()
    report = inspect(root)
    assert report.table is None and "there is no class table" in report.problems[0]
    assert report.images == 6 and "problems: 1" in str(report)
    assert inspect(root, classes="dubai").problems[0].count("not in the class table") == 1


def test_contact_sheet_shows_images_beside_masks(tmp_path: Path) -> None:
    root = fake_own(tmp_path / "mine", colour=True, size=(72, 88))
    report = inspect(root, thumbnails=4)
    with Image.open(report.contact_sheet(tmp_path / "sheet.png")) as sheet:
        pixels = np.asarray(sheet)
    assert len(report.thumbnails) == 4
    name, image, mask = report.thumbnails[0]
    assert np.array_equal(pixels[14 : 14 + 72, :88], image)
    assert np.array_equal(pixels[14 : 14 + 72, 164 : 164 + 88], mask)
    with Image.open(root / "masks" / f"{name}.png") as picture:
        assert np.array_equal(mask, np.asarray(picture))
    empty = inspect(root, thumbnails=0)
    with pytest.raises(UserError, match="no readable image"):
        empty.contact_sheet(tmp_path / "none.png")
