"""The look at a folder, against counting by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crispseg.cli.main import main
from crispseg.data import inspect
from crispseg.data.folder import open_folder
from crispseg.data.prepare import make_plan, prepare
from crispseg.errors import UserError
from tests.fakedata import fake_loveda, fake_own


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


def test_infinity_is_found_and_statistics_stay_finite(tmp_path: Path) -> None:
    root = fake_own(tmp_path / "mine", images=2)
    for path in list((root / "images").iterdir()):
        image = np.asarray(Image.open(path)).astype(np.float32)[..., 0].copy()
        if path.stem == "site0_part1":
            image[5, 7] = np.inf
        Image.fromarray(image).save(path.with_suffix(".tif"))
        path.unlink()
    report = inspect(root)
    assert report.statistics is not None and np.isfinite([*report.statistics.mean, *report.statistics.std]).all()
    assert len(report.problems) == 1
    assert "site0_part1.tif has 1 pixels of infinity, the first at row 5, column 7" in report.problems[0]


def test_split_and_its_classes_are_shown(tmp_path: Path) -> None:
    root = fake_own(tmp_path / "mine", colour=True)
    names = sorted(path.stem for path in (root / "images").iterdir())
    rows = [f"{name},{'val' if name.endswith('part1') else 'train'}" for name in names]
    (root / "split.csv").write_text("\n".join(["name,split", *rows]))
    report = inspect(root)
    assert report.split is not None and report.split.images == {"train": 3, "val": 3}
    assert any("on both sides of the split" in hint for hint in report.hints) and report.problems == []
    assert "train" in str(report) and "hints: 1" in str(report)
    (root / "split.csv").write_text("\n".join(["name,split", *rows[1:]]))
    assert "does not say which split 1 images belong to" in inspect(root).problems[0]


def test_images_for_test_may_have_no_mask(tmp_path: Path) -> None:
    """LoveDA's Test has none."""
    prepare(make_plan("loveda", fake_loveda(tmp_path / "source")), tmp_path / "out")
    report = inspect(tmp_path / "out")
    assert report.problems == [] and report.split is not None
    assert "6 images for test or unused have no mask: they cannot be scored" in report.hints
    (tmp_path / "out" / "masks" / "val_rural_9.png").unlink()
    assert inspect(tmp_path / "out").problems == ["image val_rural_9.png has no mask"]


def test_folders_in_images_are_told(tmp_path: Path) -> None:
    root = fake_own(tmp_path / "mine", colour=True)
    for kind in ("images", "masks"):
        (root / kind / "north").mkdir()
        (root / kind / "site0_part0.png").rename(root / kind / "north" / "site0_part0.png")
    report = inspect(root)
    assert report.images == 5 and "images/ holds folders, which are not looked into: north" in report.hints


def test_classes_without_names_get_a_table_to_write(tmp_path: Path) -> None:
    root = fake_own(tmp_path / "mine")
    for path in (root / "masks").iterdir():
        Image.fromarray(np.asarray(Image.open(path)) + 1).save(path)
    hint = inspect(root).hints[0]
    assert "begin at 1" in hint and hint.endswith("name,id\nclass_1,1\nclass_2,2\nclass_3,3")
    for path in (root / "masks").iterdir():
        Image.fromarray((np.asarray(Image.open(path)) > 1).astype(np.uint8) * 255).save(path)
    report = inspect(root)
    assert report.problems[0].endswith("name,id\nnothing,0\nsomething,255") and report.counts == {}


def test_jpg_masks_are_one_problem(tmp_path: Path) -> None:
    root = fake_own(tmp_path / "mine", colour=True)
    for path in list((root / "masks").iterdir()):
        Image.open(path).save(path.with_suffix(".jpg"), quality=50)
        path.unlink()
    said = ["6 masks are jpg, which blurs ids and colours, e.g. site0_part0.jpg; use png"]
    assert inspect(root).problems == said
    (root / "classes.csv").unlink()
    assert inspect(root).problems == said, "and no table of blurred colours"
    with pytest.raises(UserError, match="which blurs ids and colours, e.g. .*: save them as png"):
        open_folder(root)


def test_the_command_exits_with_one_when_there_are_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = fake_own(tmp_path / "mine")
    sheet = str(tmp_path / "sheet.png")
    assert main(["info", str(root), "--sheet", sheet, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["split"]["images"]["val"] == 2
    Image.new("L", (5, 5)).save(root / "masks" / "site0_part0.png")
    assert main(["info", str(root), "--sheet", sheet]) == 1
    assert "sheet.png is there already" in capsys.readouterr().err
    assert main(["info", str(root), "--sheet", sheet, "--existing", "replace"]) == 1
    assert "problems: 1" in capsys.readouterr().out
