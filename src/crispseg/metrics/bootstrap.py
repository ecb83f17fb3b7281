"""Is model B better than model A, or were the test images kind to it? A paired bootstrap over images."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from crispseg.errors import UserError
from crispseg.metrics.boundary import contour_scores
from crispseg.metrics.confusion import class_scores
from crispseg.metrics.scoring import mean_present, number, scored_classes

Sums: TypeAlias = Tensor | NDArray[Any]

_CHUNK = 1000  # resamples at a time


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Scores of A and B over all images, B - A, its confidence interval and its two-sided p-value; NaN where the
    images have nothing to score."""

    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float
    confidence: float
    images: int
    resamples: int

    def to_dict(self) -> dict[str, Any]:
        return {
            name: number(value) if isinstance(value, float) else value
            for name, value in dataclasses.asdict(self).items()
        }


def paired_bootstrap(
    a: Sums,
    b: Sums,
    score: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Compare two models by per-image sums (n_images, ...) of theirs on the same images in the same order.

    `score` maps sums (resamples, ...) to scores (resamples,). Each resample draws n images with replacement,
    the same for both models, adds up their sums and scores the totals. The interval is the percentile
    interval; p = 2 min(P(difference <= 0), P(difference >= 0)), with one resample added to each tail so that
    it is never 0.
    """
    sums_a, sums_b = _sums(a), _sums(b)
    if sums_a.shape != sums_b.shape:
        raise UserError(f"sums of A are {sums_a.shape} and of B {sums_b.shape}; score both on the same images")
    images = len(sums_a)
    if images < 2:
        raise UserError(f"a bootstrap over images needs at least two of them, not {images}")
    if not 0 < confidence < 1 or resamples < 1:
        raise UserError(f"confidence {confidence:g} must be between 0 and 1, resamples {resamples} at least 1")
    score_a, score_b = (float(score(sums.sum(0, keepdims=True))[0]) for sums in (sums_a, sums_b))
    differences = _resampled(sums_a, sums_b, score, resamples, seed)
    differences = differences[~np.isnan(differences)]  # a draw without any scored class says nothing
    low, high = _interval(differences, confidence)
    return Comparison(
        a=score_a,
        b=score_b,
        difference=score_b - score_a,
        low=low,
        high=high,
        p_value=_p_value(differences),
        confidence=confidence,
        images=images,
        resamples=len(differences),
    )


def compare_miou(
    a: Sums,
    b: Sums,
    scored: Sequence[int] | None = None,
    ignored: Sequence[int] = (),
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Difference in global mIoU from per-image confusion matrices (n_images, C, C) of both models."""
    _check_shape(a, b, "confusion matrices (n_images, C, C)", lambda s: len(s) == 3 and s[1] == s[2])
    chosen = scored_classes(a.shape[-1], scored, ignored)

    def miou(counts: NDArray[np.float64]) -> NDArray[np.float64]:
        return mean_present(class_scores(counts, ignored)[0][..., chosen])

    return paired_bootstrap(a, b, miou, resamples, confidence, seed)


def compare_bf(
    a: Sums,
    b: Sums,
    scored: Sequence[int] | None = None,
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Difference in global mean BF from stacked `BoundaryCounts.contours` (n_images, C, 4) of both models."""
    _check_shape(a, b, "contour sums (n_images, C, 4)", lambda s: len(s) == 3 and s[2] == 4)
    chosen = scored_classes(a.shape[-2], scored)

    def mean_bf(contours: NDArray[np.float64]) -> NDArray[np.float64]:
        return mean_present(contour_scores(contours)[0][..., chosen])

    return paired_bootstrap(a, b, mean_bf, resamples, confidence, seed)


def _resampled(
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    score: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    resamples: int,
    seed: int,
) -> NDArray[np.float64]:
    """B - A of each resample. Only how often an image is drawn matters: a matrix product adds them up."""
    generator = np.random.default_rng(seed)
    images = len(a)
    parts = []
    for start in range(0, resamples, _CHUNK):
        size = min(_CHUNK, resamples - start)
        drawn = generator.multinomial(images, np.full(images, 1 / images), size=size).astype(np.float64)
        # (size, n) @ (n, sums) -> (size, sums), exact: counts are integers far below 2^53
        score_a, score_b = (score((drawn @ sums.reshape(images, -1)).reshape(size, *sums.shape[1:])) for sums in (a, b))
        parts.append(score_b - score_a)
    return np.concatenate(parts)


def _interval(differences: NDArray[np.float64], confidence: float) -> tuple[float, float]:
    if not len(differences):
        return float("nan"), float("nan")
    low, high = np.quantile(differences, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _p_value(differences: NDArray[np.float64]) -> float:
    if not len(differences):
        return float("nan")
    tails = min((differences <= 0).sum(), (differences >= 0).sum())
    return min(1.0, float(2 * (tails + 1) / (len(differences) + 1)))


def _sums(values: Sums) -> NDArray[np.float64]:
    array = values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    return array.astype(np.float64)


def _check_shape(a: Sums, b: Sums, what: str, fits: Callable[[tuple[int, ...]], bool]) -> None:
    for values in (a, b):
        if not fits(tuple(values.shape)):
            raise UserError(f"expected {what}, not {tuple(values.shape)}")
