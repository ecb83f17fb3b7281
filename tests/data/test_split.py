"""Laws of the splits: nothing is on both sides, neighbours stay together, gaps are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crispseg.data.split import GAP, blocked_split, group_names, read_split, strip_split
from crispseg.errors import UserError

GRIDS = st.dictionaries(
    st.builds("{}{}_part{}".format, st.sampled_from(["tile", "site"]), st.integers(0, 9), st.integers(1, 9)),
    st.integers(1, 10**7),
    min_size=2,
    max_size=60,
)


@settings(max_examples=100, deadline=None)
@given(GRIDS, st.integers(0, 5), st.floats(0.05, 0.6))
def test_groups_stay_whole_and_both_sides_are_filled(sizes: dict[str, int], seed: int, share: float) -> None:
    split = blocked_split(sizes, share, seed)
    assert set(split) == set(sizes) and set(split.values()) == {"train", "val"}
    groups = group_names(sizes)
    for group in set(groups.values()):
        assert len({split[name] for name in sizes if groups[name] == group}) == 1
    assert split == blocked_split(dict(reversed(sizes.items())), share, seed)  # the order of the files is nothing


@settings(max_examples=100, deadline=None)
@given(GRIDS)
def test_parts_of_a_tile_are_never_divided(sizes: dict[str, int]) -> None:
    if len({name.split("_")[0] for name in sizes}) > 1:
        split = blocked_split(sizes)
        for name in sizes:
            for other in sizes:
                if name.split("_")[0] == other.split("_")[0]:
                    assert split[name] == split[other]


@pytest.mark.parametrize("share", [0.1, 0.25, 0.6])
def test_validation_has_its_share_of_the_pixels(share: float) -> None:
    places = [f"{a}{b}" for a in "abcdef" for b in "klmnop"]
    split = blocked_split(dict.fromkeys(places, 100), share)
    assert abs(sum(kind == "val" for kind in split.values()) - share * len(places)) <= 0.5


def test_the_split_of_a_folder_is_the_same_in_every_version() -> None:
    """Another one would score models on images that they were trained on."""
    names = [f"{letter}x" for letter in "abcdefghijkl"]
    for seed, expected in ((0, "fkl"), (1, "bdk")):
        split = blocked_split(dict.fromkeys(names, 1), seed=seed)
        assert [name for name in names if split[name] == "val"] == [f"{letter}x" for letter in expected]
    parts = strip_split(5000, 100)
    assert [part.top for _, part in parts] == [0, 1907, 2532, 3157, 3782]
    assert [kind for kind, _ in parts] == ["train", "val", "train", "val", "train"]
    assert sum(kind == "val" for kind, _ in strip_split(20480, 100)) == 4


def test_grouping_by_name() -> None:
    assert set(group_names(["tile7_part3", "tile7_part1", "tile8_part1"]).values()) == {"tile7", "tile8"}
    assert set(group_names(["2_10_0_0", "2_11_0_0", "3_10_0_0"]).values()) == {"2", "3"}
    assert len(set(group_names(["img_001", "img_002", "img_003"]).values())) == 3
    assert set(group_names(["lake-north-1", "lake-north-2", "hill-3"]).values()) == {"lake_north", "hill"}
    assert group_names(["a"]) == {"a": "a"}


@settings(max_examples=150, deadline=None)
@given(
    st.integers(64, 9000),
    st.integers(64, 9000),
    st.sampled_from([0.1, 0.2, 0.25, 0.5]),
    st.integers(0, 200),
    st.integers(0, 9),
)
def test_strips_of_one_image_never_touch(height: int, width: int, share: float, gap: int, seed: int) -> None:
    length = max(height, width)
    if length // max(round(1 / share), 2) < 8:
        return
    parts = strip_split(height, width, share, gap, seed)
    assert {kind for kind, _ in parts} == {"train", "val"}
    owner = np.zeros(length, int)
    for kind, window in parts:
        assert window.height > 0 and window.width > 0
        assert window.top >= 0 and window.top + window.height <= height
        assert window.left >= 0 and window.left + window.width <= width
        along = slice(window.top, window.top + window.height)
        if width > height:
            along = slice(window.left, window.left + window.width)
            assert window.height == height
        else:
            assert window.width == width
        assert (owner[along] == 0).all()
        owner[along] = 1 if kind == "train" else 2
    train, val = np.flatnonzero(owner == 1), np.flatnonzero(owner == 2)
    nearest = np.abs(train[:, None] - val[None, :]).min() if length < 1500 else _nearest(train, val)
    strip = length // (max(round(1 / share), 2) * max(1, min(4, length // (max(round(1 / share), 2) * 512))))
    assert nearest > 2 * (min(gap, strip // 2) // 2)  # so many pixels lie between them


def _nearest(a: np.ndarray, b: np.ndarray) -> int:
    spots = np.searchsorted(b, a)
    left = np.abs(a - b[np.clip(spots - 1, 0, len(b) - 1)])
    return int(np.minimum(left, np.abs(a - b[np.clip(spots, 0, len(b) - 1)])).min())


def test_a_tiny_image_cannot_be_split() -> None:
    with pytest.raises(UserError, match="too small to split"):
        strip_split(20, 16)
    assert GAP == 64


def test_split_file(tmp_path: Path) -> None:
    path = tmp_path / "split.csv"
    path.write_text("name,split\na.png, train\nb,VAL\nc,unused\n")
    assert read_split(path, ["a", "b", "c"]) == {"a": "train", "b": "val", "c": "unused"}
    with pytest.raises(UserError, match=r"does not say which split 1 images belong to: d"):
        read_split(path, ["a", "b", "c", "d"])
    with pytest.raises(UserError, match="line 4: there is no image 'c'"):
        read_split(path, ["a", "b"])
    path.write_text("name,split\na,trian\n")
    with pytest.raises(UserError, match="'trian'; did you mean 'train'"):
        read_split(path, ["a"])
    path.write_text("file,part\na,train\n")
    with pytest.raises(UserError, match="first line `name,split`"):
        read_split(path, ["a"])
    path.write_text("name,split\na,train\na.png,train\nb,val\na.tif,val\n")
    with pytest.raises(UserError, match="line 5: 'a' is in train already"):
        read_split(path, ["a", "b"])
    with pytest.raises(UserError, match="no split file"):
        read_split(tmp_path / "none.csv", ["a"])
