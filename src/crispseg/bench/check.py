"""No time without a correct answer: how far an output may be from the truth, and how far it is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

# The largest relative error (norm of the difference over norm of the truth) for which a time is given.
NETWORK_BOUNDS = {"fp32": 1e-4, "bf16": 5e-2, "fp16": 5e-2}  # against the model's own float32 eager output
OPERATOR_BOUNDS = {"fp32": 1e-5, "bf16": 1e-2, "fp16": 1e-2}  # against the float64 reference


def relative_error(found: Sequence[Tensor], truth: Sequence[Tensor], least_norm: float = 1e-300) -> float:
    """The worst over the tensors; infinite where the shape is another or a value is not finite.

    A truth of a norm below `least_norm` counts as of that norm: where it should be zero there is no relative error.
    """
    return max(_relative_error(x, y, least_norm) for x, y in zip(found, truth, strict=True))


def contrast(truths: Sequence[Sequence[Tensor]]) -> float | None:
    """How far apart the answers to different inputs are, at least: what an answer to another input would be off by."""
    if len(truths) < 2:
        return None
    return min(_relative_error(other[0], truths[0][0]) for other in truths[1:])


def _relative_error(found: Tensor, truth: Tensor, least_norm: float = 1e-300) -> float:
    if found.shape != truth.shape:
        return float("inf")
    wide = truth.double()
    error = float((found.double() - wide).norm() / wide.norm().clamp(min=least_norm))
    return error if math.isfinite(error) else float("inf")  # max() would overlook a NaN
