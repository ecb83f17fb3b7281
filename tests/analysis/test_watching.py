"""Spectra through hooks: maps made of waves whose energies are known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from crispseg.analysis.watching import activity, caught, places, ratios
from crispseg.models.base import SegmentationModel
from tests.evaluate.toy import colour_model


def waves(height: int, width: int, mean: float, slow: float, fast: float) -> torch.Tensor:
    """(1, H, W, 2): a mean, a wave of one cycle down the map, and one of a quarter cycle per pixel and more across."""
    y, x = np.mgrid[:height, :width]
    channel = mean + slow * np.cos(2 * np.pi * y / height) + fast * np.cos(2 * np.pi * (width // 3) * x / width)
    return torch.from_numpy(np.stack([channel, 2 * channel], -1)[None])


@given(
    st.integers(8, 20),
    st.integers(12, 24),
    st.floats(0.1, 3),
    st.floats(0.1, 3),
    st.floats(0.1, 3),
)
def test_ratio_of_known_waves(height: int, width: int, mean: float, slow: float, fast: float) -> None:
    module = nn.Identity()
    with caught({"here": module}) as outputs:
        module(waves(height, width, mean, slow, fast))
    # mean squares: of a constant its square, of a wave half its amplitude's
    expected = (fast**2 / 2) / (mean**2 + slow**2 / 2)
    assert ratios(outputs, 0.5)["here"] == pytest.approx(expected, rel=1e-9)


def test_the_cutoff_decides(height: int = 16, width: int = 24) -> None:
    module = nn.Identity()
    with caught({"here": module}) as outputs:
        module(waves(height, width, 1.0, 1.0, 1.0))  # the fast wave is at 2/3 of Nyquist
    assert ratios(outputs, 0.7)["here"] == pytest.approx(0, abs=1e-12)
    assert ratios(outputs, 0.6)["here"] == pytest.approx(1 / 3)
    assert ratios(outputs, 0.1)["here"] == pytest.approx(1.0)  # the slow one, at 1/8, is high too


def test_hooks_go_with_the_block() -> None:
    module = nn.Identity()
    with pytest.raises(ZeroDivisionError), caught({"here": module}) as outputs:
        module(torch.zeros(1))
        raise ZeroDivisionError
    module(torch.ones(1))
    assert not module._forward_hooks and outputs["here"].item() == 0


def test_every_block_and_its_mixer(crisp: SegmentationModel) -> None:
    blocks, mixers = places(crisp, "block"), places(crisp, "mixer")
    assert list(blocks) == list(mixers)
    assert all(mixers[name] is block.attn for name, block in blocks.items())
    with torch.no_grad(), caught(mixers) as outputs:
        crisp(torch.randn(1, 3, 45, 70))
    assert outputs["stage 1 block 1"].shape == (1, 12, 18, 32)
    assert outputs["stage 4 block 2"].shape == (1, 2, 3, 256)
    assert not places(colour_model(), "mixer")


def test_activity_is_the_distance_from_the_mean() -> None:
    values = torch.randn(1, 5, 7, 3)
    expected = np.zeros((5, 7))
    array = values[0].numpy().astype(np.float64)
    for y, x in np.ndindex(5, 7):
        expected[y, x] = np.sqrt(((array[y, x] - array.reshape(-1, 3).mean(0)) ** 2).sum())
    np.testing.assert_allclose(activity(values).numpy(), expected, rtol=1e-5)
