"""Which numbers are data: not NaN, not infinity, and none of the huge numbers that stand for a gap unasked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST = 1e15  # beyond what any sensor counts; the usual fillers (1e20, 9.97e36, 3.4e38, 1e300) lie far above


def is_data(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Of floating-point numbers, those that were measured."""
    with np.errstate(invalid="ignore"):
        found: NDArray[np.bool_] = np.abs(values) < LARGEST  # False for NaN
    return found
