"""What each split holds, and what its owner is told about it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crispseg.data import open_folder
from crispseg.data.shares import neighbours, read_all_labels, split_shares
from crispseg.errors import UserError
from tests.fakedata import fake_own


def write_split(root: Path, val: set[str]) -> None:
    names = sorted(path.stem for path in (root / "images").iterdir())
    rows = [f"{name},{'val' if name in val else 'train'}" for name in names]
    (root / "split.csv").write_text("\n".join(["name,split", *rows]))


def test_shares_are_those_of_the_masks(tmp_path: Path) -> None:
    root = fake_own(tmp_path / "mine")
    folder = open_folder(root)
    shares = split_shares(folder)
    for split in ("train", "val"):
        masks = np.concatenate([np.ravel(folder.read_mask(record)) for record in folder.records(split)])
        for number, name in enumerate(folder.protocol.classes):
            assert shares.shares[split][name] == pytest.approx((masks == number).mean())
    assert "images" in str(shares) and f"{100 * shares.shares['val']['class_1']:.2f} %" in str(shares)


def test_a_class_that_is_missing_on_one_side_is_told(tmp_path: Path) -> None:
    root = fake_own(tmp_path / "mine")
    for path in (root / "masks").iterdir():
        with Image.open(path) as picture:
            mask = np.array(picture)
        Image.fromarray(np.where(mask == 2, 2 if path.stem == "site0_part0" else 0, mask)).save(path)
    write_split(root, {"site2_part1"})
    said = "class 'class_2' is in no validation image: it has no score there, and 0 if it is predicted"
    assert any(said in text for text in split_shares(open_folder(root)).warnings)
    write_split(root, {"site0_part0", "site0_part1"})
    assert any("'class_2' is in no training image" in text for text in split_shares(open_folder(root)).warnings)


def test_unlike_splits_are_told(tmp_path: Path) -> None:
    root = fake_own(tmp_path / "mine")
    Image.new("L", (88, 72), 1).save(root / "masks" / "site2_part1.png")
    write_split(root, {"site2_part1"})
    told = "\n".join(split_shares(open_folder(root)).warnings)
    assert "training and validation are unlike: 'class_1'" in told and "100 % of the other" in told


def test_copies_on_both_sides_are_told(tmp_path: Path) -> None:
    root = fake_own(tmp_path / "mine")
    write_split(root, {"site2_part1", "site1_part1"})
    assert not any("copies" in text for text in split_shares(open_folder(root)).warnings)
    for folder in ("images", "masks"):
        shutil.copy(root / folder / "site0_part0.png", root / folder / "other.png")
        (root / folder / "linked.png").symlink_to(root / folder / "site0_part1.png")
    with (root / "split.csv").open("a") as file:
        file.write("\nother,val\nlinked,test\n")
    told = split_shares(open_folder(root)).warnings
    assert "1 of 3 val images are copies of training images, e.g. other of site0_part0: scores are too good" in told
    assert "1 of 1 test images are copies of training images, e.g. linked of site0_part1: scores are too good" in told


def test_every_fault_is_found_before_anything_is_computed(tmp_path: Path) -> None:
    root = fake_own(tmp_path / "mine", images=10)
    (root / "classes.csv").write_text("name,id\na,0\nb,1\nc,2\n")
    write_split(root, {"site4_part0"})
    for name in ("site1_part0", "site4_part0"):
        Image.new("L", (88, 72), 9).save(root / "masks" / f"{name}.png")
    with pytest.raises(UserError) as caught:
        read_all_labels(open_folder(root), ("train", "val"), lambda value: [value], slice(None))
    assert "site1_part0.png: class id 9" in str(caught.value) and "site4_part0.png: class id 9" in str(caught.value)


def test_neighbours_on_both_sides_are_hinted_at(tmp_path: Path) -> None:
    root = fake_own(tmp_path / "mine")
    assert neighbours(open_folder(root)) == ""
    write_split(root, {"site1_part1", "site2_part0", "site2_part1"})
    assert "1 of 3 groups" in neighbours(open_folder(root))
    assert "site1_part0 (train) and site1_part1 (val)" in neighbours(open_folder(root))
    for number, path in enumerate(sorted((root / "images").iterdir())):
        (root / "masks" / path.name).rename(root / "masks" / f"img{number:03d}.png")
        path.rename(root / "images" / f"img{number:03d}.png")
    write_split(root, {"img002"})
    assert "2 pairs of images with consecutive numbers" in neighbours(open_folder(root))
