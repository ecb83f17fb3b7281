"""One global confusion matrix, and the scores read from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crispseg.metrics.accumulate import Accumulator
from crispseg.metrics.labels import LabelMap, compact_pair, label_pair
from crispseg.metrics.scoring import mean_present, named, number, per_class, ratio, scored_classes

_CHUNK = 1 << 22  # pixels widened to int64 at a time, so that a 6000 x 6000 map needs no gigabyte


def confusion_counts(
    prediction: LabelMap, target: LabelMap, num_classes: int, ignore_index: int | None = 255
) -> Tensor:
    """Pixel counts (num_classes, num_classes), int64 on the CPU: row = true class, column = predicted class.

    Pixels whose label is `ignore_index` are left out, whatever was predicted there.
    """
    predicted, true = label_pair(prediction, target)
    counts = torch.zeros(num_classes * num_classes, dtype=torch.int64)
    for p_chunk, t_chunk in zip(_chunks(predicted), _chunks(true), strict=True):
        p, t = compact_pair(p_chunk, t_chunk, num_classes, ignore_index)
        cell = t * num_classes + p  # ignored pixels land beyond the last cell
        counts += torch.bincount(cell, minlength=counts.numel())[: counts.numel()].cpu()
    return counts.view(num_classes, num_classes)


@dataclasses.dataclass(frozen=True)
class ConfusionScores:
    """Scores of one matrix. Arrays are per class, for all classes; means are over the `scored` ones."""

    scored: tuple[int, ...]
    miou: float
    mf1: float
    oa: float
    iou: NDArray[np.float64]
    f1: NDArray[np.float64]
    precision: NDArray[np.float64]
    recall: NDArray[np.float64]

    def to_dict(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """The scores under their usual names; a score that is not defined is None (JSON has no NaN)."""
        return {
            "mIoU": number(self.miou),
            "mF1": number(self.mf1),
            "OA": number(self.oa),
            "IoU": per_class(self.iou, names),
            "F1": per_class(self.f1, names),
            "precision": per_class(self.precision, names),
            "recall": per_class(self.recall, names),
            "scored": named(self.scored, names),
        }


class ConfusionMatrix(Accumulator):
    """Counts over any number of images. `counts[t, p]` is the number of pixels of class t predicted as p."""

    def __init__(self, num_classes: int, ignore_index: int | None = 255) -> None:
        counts = torch.zeros(num_classes, num_classes, dtype=torch.int64)
        super().__init__({"num_classes": num_classes, "ignore_index": ignore_index}, {"counts": counts})
        self.num_classes = num_classes
        self.ignore_index = ignore_index

    @property
    def counts(self) -> Tensor:
        return self.sums["counts"]

    def update(self, prediction: LabelMap, target: LabelMap) -> ConfusionMatrix:
        """Count one label map or a batch of them; returns the part that was added."""
        added = self.empty()
        added.counts.copy_(confusion_counts(prediction, target, self.num_classes, self.ignore_index))
        self += added
        return added

    def scores(self, scored: Sequence[int] | None = None, ignored: Sequence[int] = ()) -> ConfusionScores:
        """Scores with means over `scored` classes (default: all that are not `ignored`).

        `scored` leaves a class out of the mean and keeps its pixels: they still make errors for the others
        and count in OA. `ignored` drops the pixels of true classes it names, as if they had the ignore label.
        """
        counts = self.counts.numpy()
        chosen = scored_classes(self.num_classes, scored, ignored)
        iou, f1, precision, recall = class_scores(counts, ignored)
        kept = without_rows(counts, ignored)
        total = kept.sum()
        return ConfusionScores(
            scored=tuple(chosen),
            miou=float(mean_present(iou[chosen])),
            mf1=float(mean_present(f1[chosen])),
            oa=float(kept.trace() / total) if total else float("nan"),
            iou=iou,
            f1=f1,
            precision=precision,
            recall=recall,
        )


def class_scores(
    counts: NDArray[Any], ignored: Sequence[int] = ()
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """IoU, F1, precision and recall per class (..., C) of matrices (..., C, C).

    A class in neither truth nor prediction is NaN in all four. One that is in either has numbers in all four:
    0 / 0 (precision of a class never predicted) is then 0.
    """
    counts = without_rows(counts, ignored)
    hit = np.diagonal(counts, axis1=-2, axis2=-1).astype(np.float64)
    true, predicted = counts.sum(-1), counts.sum(-2)
    present = true + predicted > 0
    return (
        ratio(hit, true + predicted - hit, present),
        ratio(2 * hit, true + predicted, present),
        ratio(hit, predicted, present),
        ratio(hit, true, present),
    )


def without_rows(counts: NDArray[Any], classes: Sequence[int]) -> NDArray[Any]:
    """The matrices (..., C, C) with nothing in the rows of `classes`."""
    if not classes:
        return counts
    kept = counts.copy()
    kept[..., list(classes), :] = 0
    return kept


def _chunks(labels: Tensor) -> Iterator[Tensor]:
    flat = labels.reshape(-1)
    for start in range(0, flat.numel(), _CHUNK):
        yield flat[start : start + _CHUNK]
