"""Sets made of UC Merced's pictures, and the labels that are drawn for them."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crispseg.data.folder import open_folder

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import scenes_as_labels

LABELS = Path(__file__).parents[2] / "labels" / "ucmerced"


@pytest.fixture
def pictures(tmp_path):
    """A stand-in for UC Merced: two pictures of each kind that is needed."""
    rng = np.random.default_rng(0)
    for scene in (*(scene for scenes in scenes_as_labels.KINDS.values() for scene in scenes), "river"):
        for number in (1, 2):
            path = tmp_path / "ucmerced" / scene / f"{scene}{number:02}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 255, (24, 32, 3), np.uint8)).save(path)
    return tmp_path / "ucmerced"


def test_every_pixel_has_the_kind_of_its_picture(pictures, tmp_path):
    assert scenes_as_labels.main([str(pictures), str(tmp_path / "out")]) == 0
    folder = open_folder(tmp_path / "out")
    assert folder.protocol.classes == ("wood", "field", "shore")
    found = {r.name: np.unique(folder.read_mask(r)) for s in ("train", "val") for r in folder.records(s)}
    assert len(found) == 12 and found["forest01"] == 0 and found["golfcourse02"] == 1 and found["beach01"] == 2


def test_drawn_labels_find_their_pictures(pictures, tmp_path):
    masks = tmp_path / "labels" / "masks"
    masks.mkdir(parents=True)
    truth = np.random.default_rng(1).choice(np.array([0, 1, 255], np.uint8), (24, 32))
    Image.fromarray(truth).save(masks / "river02.png")
    Image.fromarray(1 - truth % 2).save(masks / "beach01.png")
    (masks.parent / "classes.csv").write_text("name,id\nwater,0\nland,1\n")
    (masks.parent / "split.csv").write_text("name,split\nriver02,val\nbeach01,train\n")
    assert scenes_as_labels.main([str(pictures), str(tmp_path / "out"), "--masks", str(masks.parent)]) == 0
    folder = open_folder(tmp_path / "out")
    (record,) = folder.records("val")
    assert record.name == "river02" and np.array_equal(folder.read_mask(record), truth)
    assert [one.name for one in folder.records("train")] == ["beach01"]


def test_a_missing_picture_is_named(tmp_path, capsys):
    assert scenes_as_labels.main([str(tmp_path), str(tmp_path / "out"), "--masks", str(LABELS)]) == 1
    assert ".jpg" in capsys.readouterr().err


def test_the_labels_that_are_kept_are_whole():
    with (LABELS / "classes.csv").open() as file:
        classes = {row["name"]: int(row["id"]) for row in csv.DictReader(file)}
    with (LABELS / "split.csv").open() as file:
        split = {row["name"]: row["split"] for row in csv.DictReader(file)}
    masks = {path.stem: np.asarray(Image.open(path)) for path in (LABELS / "masks").glob("*.png")}
    assert set(masks) == set(split) and set(split.values()) == {"train", "val"}
    assert set(np.concatenate([np.unique(mask) for mask in masks.values()])) == {*classes.values(), 255}
    weak = tuple(scene for scenes in scenes_as_labels.KINDS.values() for scene in scenes)
    assert not any(name.startswith(weak) for name, part in split.items() if part == "val")  # trained on as scenes
