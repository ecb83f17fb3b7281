"""From sums to scores: fractions and means that know what is not there, and their form in a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.errors import UserError


def scored_classes(num_classes: int, scored: Sequence[int] | None = None, ignored: Sequence[int] = ()) -> list[int]:
    """The classes a mean is taken over: `scored`, or all that are not `ignored`."""
    _check(ignored, num_classes, "ignored")
    if scored is None:
        return [c for c in range(num_classes) if c not in ignored]
    _check(scored, num_classes, "scored")
    return list(scored)


def ratio(part: NDArray[Any], whole: NDArray[Any], present: NDArray[np.bool_]) -> NDArray[np.float64]:
    """part / whole; 0 where whole is 0; NaN where not `present`."""
    return np.where(present, part / np.maximum(whole, 1), np.nan)


def mean_present(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over the last axis of what is not NaN; NaN where nothing is left."""
    present = ~np.isnan(values)
    return ratio(np.where(present, values, 0.0).sum(-1), present.sum(-1), np.asarray(present.any(-1)))


def number(value: float) -> float | None:
    """For JSON: None in place of NaN."""
    return None if np.isnan(value) else float(value)


def per_class(values: NDArray[np.float64], names: Sequence[str] | None) -> dict[str, float | None]:
    keys = named(range(len(values)), names)
    return {str(key): number(value) for key, value in zip(keys, values, strict=True)}


def named(classes: Sequence[int], names: Sequence[str] | None) -> list[Any]:
    return list(classes) if names is None else [names[c] for c in classes]


def _check(classes: Sequence[int], num_classes: int, what: str) -> None:
    for c in classes:
        if not 0 <= c < num_classes:
            raise UserError(f"{what} class {c} does not exist: there are {num_classes}, counted from 0")
