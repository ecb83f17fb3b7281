"""Mask files to class ids, against loops over pixels."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from crispseg.data import labels
from crispseg.data.classes import IGNORE, ClassTable
from crispseg.data.labels import LabelError, encode, histogram, read_labels
from crispseg.errors import UserError

COLOURS = ((255, 255, 255), (0, 0, 255), (10, 20, 30))
TABLE = ClassTable(("a", "b", "c"), COLOURS, ignored_colours=((0, 0, 0),))


@settings(max_examples=40, deadline=None)
@given(arrays(np.uint8, (5, 4), elements=st.integers(0, 3)))
def test_colours_become_the_class_they_belong_to(choice: np.ndarray) -> None:
    palette = np.array((*COLOURS, (0, 0, 0)), np.uint8)
    mask, mended = encode(palette[choice], TABLE, "x.png")
    assert mended == 0
    assert mask.tolist() == [[IGNORE if v == 3 else int(v) for v in row] for row in choice]


@pytest.mark.parametrize(
    ("order", "values", "refused"),
    [
        ((0, 1, 2), [0, 1, 2], False),
        ((0, 2, 1), [0, 1, 2], True),
        ((0, 2, 1), [0, 0, 0], False),  # shown as what it is
        ((2, 2, 2), [1, 1, 1], False),  # one colour for all: no order
        ((0, 1), [0, 1, 1], False),
    ],
)
def test_palettes_in_another_order_are_refused_whatever_ignored_ground_is_shown_in(
    order: tuple[int, ...], values: list[int], refused: bool
) -> None:
    stored = Image.fromarray(np.array([[*values, IGNORE]], np.uint8), "P")
    stored.putpalette([part for i in order for part in COLOURS[i]] + [7] * 3 * (256 - len(order)))
    file = io.BytesIO()
    stored.save(file, "png")
    table = ClassTable(("a", "b", "c"), COLOURS, (0, 1, 2))
    if refused:
        with pytest.raises(LabelError, match="value 1 is shown in the colour 10,20,30"):
            read_labels(file.getvalue(), table, "x.png")
    else:
        assert read_labels(file.getvalue(), table, "x.png")[0].tolist() == [[*values, IGNORE]]


@settings(max_examples=40, deadline=None)
@given(arrays(np.uint8, (6, 5, 3), elements=st.one_of(st.integers(0, 40), st.integers(0, 255))), st.integers(0, 60))
def test_any_colours_agree_with_a_loop(array: np.ndarray, tolerance: int) -> None:
    known = [*COLOURS, (0, 0, 0)]
    expected = np.full((6, 5), IGNORE)
    strangers, mended, first = 0, 0, None
    for row, column in np.ndindex(6, 5):
        apart = [max(abs(int(a) - b) for a, b in zip(array[row, column], colour, strict=True)) for colour in known]
        best = int(np.argmin(apart))
        if apart[best] > tolerance or apart.count(apart[best]) > 1:
            strangers += 1
            first = first or (row, column)
        else:
            mended += apart[best] > 0
            expected[row, column] = best if best < 3 else IGNORE
    if strangers:
        with pytest.raises(LabelError, match=rf"{strangers} pixels.*row {first[0]}, column {first[1]}"):
            encode(array, TABLE, "x.png", tolerance=tolerance)
    mask, count = encode(array, TABLE, "x.png", tolerance=tolerance, unknown="ignore")
    assert np.array_equal(mask, expected)
    assert count == strangers + mended


def test_neighbours_of_a_class_colour_are_strangers() -> None:
    """Colours that a sum or a hash of the channels would confuse."""
    for colour in ((255, 255, 254), (0, 255, 0), (255, 0, 0), (30, 20, 10)):
        with pytest.raises(LabelError, match=f"{colour[0]},{colour[1]},{colour[2]}"):
            encode(np.full((2, 2, 3), colour, np.uint8), TABLE, "x.png")


@settings(max_examples=30, deadline=None)
@given(arrays(np.int32, (4, 7), elements=st.sampled_from([3, 7, 11, 99])))
def test_values_map_through_the_table(values: np.ndarray) -> None:
    table = ClassTable(("a", "b", "c"), values=(7, 3, 11), ignored_values=(99,))
    mask, _ = encode(values, table, "x.tif")
    lookup = {7: 0, 3: 1, 11: 2, 99: IGNORE}
    assert mask.tolist() == [[lookup[int(v)] for v in row] for row in values]


def test_values_are_counted_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, a mask of bytes would be copied into eight times its size."""
    monkeypatch.setattr(labels, "_SLICE", 7)
    array = np.random.default_rng(0).integers(0, 5, (9, 11), np.uint8)
    values, counts = np.unique(array, return_counts=True)
    assert labels._count_values(array) == dict(zip(values.tolist(), counts.tolist(), strict=True))
    assert labels._count_values(array[:0]) == {}


def test_an_unknown_value_is_told_with_its_place() -> None:
    values = np.zeros((4, 4), np.uint8)
    values[2, 1] = 9
    with pytest.raises(LabelError, match=r"m\.png: class id 9 is out of range: 1 pixels, the first at row 2, column 1"):
        encode(values, ClassTable(("a", "b")), "m.png")


def test_masks_of_other_kinds() -> None:
    alpha = np.dstack([np.full((2, 2, 3), COLOURS[1], np.uint8), np.full((2, 2), 255, np.uint8)])
    assert (encode(alpha, TABLE, "x")[0] == 1).all()
    grey = np.ones((2, 2, 3), np.uint8)
    assert (encode(grey, ClassTable(("a", "b")), "x")[0] == 1).all()
    assert (encode(np.ones((2, 2)), ClassTable(("a", "b")), "x")[0] == 1).all()
    with pytest.raises(UserError, match="fractions"):
        encode(np.full((2, 2), 0.5), ClassTable(("a", "b")), "x")
    with pytest.raises(UserError, match="no colours"):
        encode(np.full((1, 1, 3), (1, 2, 3), np.uint8), ClassTable(("a", "b")), "x")
    with pytest.raises(UserError, match="8 bit"):
        encode(np.full((1, 1, 3), (1, 2, 3), np.uint16), TABLE, "x")
    with pytest.raises(UserError, match="5 bands"):
        encode(np.zeros((1, 1, 5), np.uint8), TABLE, "x")


def test_histogram_leaves_ignored_pixels_out() -> None:
    assert histogram(np.array([[0, 1, 1, IGNORE]], np.uint8), 3) == [1, 2, 0]
