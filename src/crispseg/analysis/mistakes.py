"""Wrong pixels: what was taken for what, and how many of them lie along true boundaries."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crispseg.data.classes import IGNORE
from crispseg.metrics import ConfusionMatrix, confusion_counts
from crispseg.metrics.morphology import class_bits, near_other_class


def boundary_band(truth: Tensor, num_classes: int, width: float) -> Tensor:
    """Labelled pixels (H, W) bool with a pixel of another class at distance <= width."""
    labels = torch.where(truth == IGNORE, num_classes, truth.long())
    return near_other_class(list(class_bits(labels, num_classes)), width)


@dataclasses.dataclass
class Mistakes:
    """Confusion matrices (true, predicted) inside the band around true boundaries and in the interior."""

    band: NDArray[np.int64]
    interior: NDArray[np.int64]

    @classmethod
    def none(cls, num_classes: int) -> Mistakes:
        return cls(*(np.zeros((num_classes, num_classes), np.int64) for _ in range(2)))

    def count(self, predicted: Tensor, truth: Tensor, band: Tensor) -> None:
        number = len(self.band)
        self.band += confusion_counts(predicted[band], truth[band], number, IGNORE).numpy()
        self.interior += confusion_counts(predicted[~band], truth[~band], number, IGNORE).numpy()

    @property
    def all(self) -> NDArray[np.int64]:
        return self.band + self.interior

    def figures(self, scored: tuple[int, ...]) -> dict[str, float]:
        """Shares by name, NaN where there is no such pixel; mIoU is that of these windows."""
        matrix = ConfusionMatrix(len(self.band))
        matrix.counts.copy_(torch.from_numpy(self.all))
        scores = matrix.scores(scored)
        wrong = _wrong(self.all)
        return {
            "mIoU": scores.miou,
            "OA": scores.oa,
            "wrong in the band": _share(_wrong(self.band), self.band.sum()),
            "wrong in the interior": _share(_wrong(self.interior), self.interior.sum()),
            "pixels in the band": _share(self.band.sum(), self.all.sum()),
            "errors in the band": _share(_wrong(self.band), wrong),
        }

    def largest(self, limit: int = 10) -> list[tuple[int, int, int, int]]:
        """The most frequent mistakes: (true class, predicted class, pixels, of those in the band)."""
        counts = self.all
        np.fill_diagonal(counts, 0)
        order = np.argsort(-counts, axis=None, kind="stable")[:limit]
        pairs = [divmod(int(i), len(counts)) for i in order]
        return [(t, p, int(counts[t, p]), int(self.band[t, p])) for t, p in pairs if counts[t, p]]


def _wrong(counts: NDArray[np.int64]) -> int:
    return int(counts.sum() - np.trace(counts))


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else float("nan")
