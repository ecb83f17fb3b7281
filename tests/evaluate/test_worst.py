"""The worst windows, against a list of all windows sorted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crispseg.evaluate import worst as room
from crispseg.evaluate.worst import WorstWindows, parts


@given(length=st.integers(1, 5000))
def test_parts_cover_an_axis_once_in_pieces_of_much_the_same_length(length: int) -> None:
    pieces = list(parts(length))
    assert [i for piece in pieces for i in range(piece.start, piece.stop)] == list(range(length))
    lengths = [piece.stop - piece.start for piece in pieces]
    assert max(lengths) - min(lengths) <= 1 and max(lengths) < 1.5 * 384
    assert len(lengths) == 1 or min(lengths) > 384 / 2


def test_the_worst_are_kept_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_SIDE", 16)
    rng = np.random.default_rng(0)
    every = []
    keeper = WorstWindows(5)
    for index in range(6):
        truth = rng.integers(0, 3, (48, 32)).astype(np.uint8)
        wrong = rng.random(truth.shape) < rng.random((3, 1, 2, 1)).repeat(16, 1).repeat(16, 3).reshape(48, 32)
        prediction = np.where(wrong, (truth + 1) % 3, truth).astype(np.uint8)
        truth[rng.random(truth.shape) < 0.3] = 255
        image = rng.integers(0, 255, (48, 32, 3)).astype(np.uint8)
        keeper.look(index, f"image{index}", image, truth, prediction)
        for top in range(0, 48, 16):
            for left in range(0, 32, 16):
                t, p = (a[top : top + 16, left : left + 16] for a in (truth, prediction))
                every.append(((t != p) & (t != 255)).sum() / (t != 255).sum())
    assert [window.share for window in keeper.kept] == sorted(every, reverse=True)[:5]
    for window in keeper.kept:
        assert window.wrong == ((window.truth != window.prediction) & (window.truth != 255)).sum()
        assert window.image.shape == (16, 16, 3)


def test_a_window_with_hardly_a_label_is_not_the_worst() -> None:
    keeper = WorstWindows(2)
    image = np.zeros((20, 20, 3), np.uint8)
    truth = np.full((20, 20), 255, np.uint8)
    truth[0, 0] = 1  # one label, and it is missed
    keeper.look(0, "sparse", image, truth, np.zeros_like(truth))
    half = np.zeros((20, 20), np.uint8)
    half[:10] = 1
    keeper.look(1, "half", image, half, np.zeros_like(half))
    assert [window.name for window in keeper.kept] == ["half", "sparse"]


def test_what_is_right_is_never_shown_and_none_may_be_asked_for() -> None:
    image, right = np.zeros((20, 20, 3), np.uint8), np.zeros((20, 20), np.uint8)
    keeper, none = WorstWindows(2), WorstWindows(0)
    keeper.look(0, "right", image, right, right)
    none.look(0, "wrong", image, right, right + 1)
    assert keeper.kept == [] and none.kept == []
