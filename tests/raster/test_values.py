"""Scenes whose numbers are not of the kind the model knows: refused with a reason, never mapped without a word."""

from __future__ import annotations

import numpy as np
import pytest

from crispseg import segment
from crispseg.errors import UserError
from crispseg.models.base import ModelInfo
from crispseg.raster.values import unfit
from tests.predict.standins import StandIn

BYTES = ModelInfo(mean=(90.0, 100.0, 110.0), std=(40.0, 40.0, 40.0))
WIDE = ModelInfo(mean=(1200.0, 1100.0, 900.0), std=(400.0, 400.0, 300.0), dtype="uint16")


@pytest.mark.parametrize(
    ("info", "dtype", "low", "high", "reason"),
    [
        (BYTES, "uint8", 0, 255, ""),
        (BYTES, "uint16", 0, 255, ""),  # 8 bits in a wide file
        (BYTES, "uint16", 100, 3000, "8-bit pixels"),
        (BYTES, "int8", -128, 127, "8-bit pixels, 0 to 255"),  # bytes that are taken for signed ones
        (BYTES, "float32", -25, 3, "8-bit pixels, 0 to 255"),  # decibels
        (BYTES, "float32", 0, 1, "trained on pixels around 90, 100, 110"),
        (BYTES, "float32", 0, 255, ""),
        (WIDE, "uint16", 100, 3000, ""),
        (WIDE, "uint8", 0, 255, "trained on uint16 pixels"),
        (WIDE, "float32", 0, 1, "trained on pixels around 1200"),
        (WIDE, "uint16", 40000, 60000, "mean of its band"),
    ],
)
def test_what_suits_a_model(info: ModelInfo, dtype: str, low: float, high: float, reason: str) -> None:
    sample = np.random.default_rng(0).uniform(low, high, (3, 500)).astype(dtype)
    found = unfit(info, np.dtype(dtype), sample)
    assert reason in found and bool(found) == bool(reason)


def test_arrays_are_looked_at_too() -> None:
    model = StandIn().with_card(mean=BYTES.mean, std=BYTES.std)
    image = np.random.default_rng(0).integers(0, 4000, (80, 90, 3)).astype(np.uint16)
    with pytest.raises(UserError, match=r"the image does not suit the model: it has uint16 pixels"):
        segment(image, model, tile=64)
    assert segment(image, model, tile=64, any_values=True).shape == (80, 90)
    with pytest.raises(UserError, match="tiles of 10 px are too small"):
        segment(image, model, tile=10)
