"""Dilations by a disk against scipy's exact Euclidean distance transform."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import ndimage

from crispseg.metrics.morphology import clear_of, disk_or

radii = st.sampled_from([0, 0.9, 1, 2**0.5, 2, 5**0.5, 3, 3.7, 5, 13**0.5, 30])
planes = hnp.arrays(np.uint8, hnp.array_shapes(min_dims=2, max_dims=2, max_side=12), elements=st.integers(0, 7))


def within(mask, radius):
    if not mask.any():
        return np.zeros_like(mask)
    return ndimage.distance_transform_edt(~mask) <= radius + 1e-9


@given(planes, radii)
def test_each_bit_spreads_by_the_euclidean_distance(bits, radius):
    found = disk_or(torch.from_numpy(bits), radius).numpy()
    for bit in (1, 2, 4):
        np.testing.assert_array_equal((found & bit) != 0, within((bits & bit) != 0, radius))


@given(planes, radii)
def test_clear_of_is_the_rest(bits, radius):
    mask = bits == 1
    np.testing.assert_array_equal(clear_of(torch.from_numpy(mask), radius).numpy(), ~within(mask, radius))
