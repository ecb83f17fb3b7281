"""Boundary scores of multi-class label maps: BF, boundary IoU, and scores in a band around true boundaries.

Right where several classes meet (every class keeps its own contour), at image borders (the border is no
contour) and beside ignored pixels (they make no contour, and what they could hide is not judged). The
definitions are in docs/reference/metrics.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crispseg.errors import UserError
from crispseg.metrics.accumulate import Accumulator
from crispseg.metrics.confusion import ConfusionMatrix, confusion_counts
from crispseg.metrics.labels import LabelMap, compact_pair, label_pair
from crispseg.metrics.morphology import class_bits, clear_of, contour, disk_or, near_other_class
from crispseg.metrics.scoring import mean_present, named, number, per_class, ratio, scored_classes

_STRIP = 1 << 22  # pixels worked on at a time


@dataclasses.dataclass(frozen=True)
class BoundaryScores:
    """Arrays are per class, for all classes; means are over the `scored` ones. `mbf` is the mean of `bf`."""

    tolerance: float
    width: float
    scored: tuple[int, ...]
    mbf: float
    mbiou: float
    band_miou: float
    band_accuracy: float
    bf: NDArray[np.float64]
    precision: NDArray[np.float64]
    recall: NDArray[np.float64]
    biou: NDArray[np.float64]
    band_iou: NDArray[np.float64]

    def to_dict(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """The scores under their usual names (`mBF` and `BF@3px` are one number); None where not defined."""
        tolerance, width = f"{self.tolerance:g}px", f"{self.width:g}px"
        return {
            f"BF@{tolerance}": number(self.mbf),
            "mBF": number(self.mbf),
            f"BIoU@{width}": number(self.mbiou),
            f"band mIoU@{width}": number(self.band_miou),
            f"band accuracy@{width}": number(self.band_accuracy),
            "BF": per_class(self.bf, names),
            "boundary precision": per_class(self.precision, names),
            "boundary recall": per_class(self.recall, names),
            "BIoU": per_class(self.biou, names),
            "band IoU": per_class(self.band_iou, names),
            "scored": named(self.scored, names),
        }


class BoundaryCounts(Accumulator):
    """Boundary sums over any number of images; `tolerance` of BF and `width` of the bands are in pixels.

    Sums, all int64: `contours` (C, 4), see `contour_scores`; `bands` (C, 3), see `inner_band_iou`;
    `band` (C, C), the confusion matrix inside the band around true boundaries.
    """

    def __init__(
        self, num_classes: int, tolerance: float = 3, width: float = 3, ignore_index: int | None = 255
    ) -> None:
        if tolerance < 0 or width < 1:
            raise UserError(f"tolerance {tolerance:g} px must be at least 0 and width {width:g} px at least 1")
        super().__init__(
            {
                "num_classes": num_classes,
                "tolerance": tolerance,
                "width": width,
                "ignore_index": ignore_index,
            },
            {
                "contours": torch.zeros(num_classes, 4, dtype=torch.int64),
                "bands": torch.zeros(num_classes, 3, dtype=torch.int64),
                "band": torch.zeros(num_classes, num_classes, dtype=torch.int64),
            },
        )
        self.num_classes = num_classes
        self.tolerance = tolerance
        self.width = width
        self.ignore_index = ignore_index

    @property
    def contours(self) -> Tensor:
        return self.sums["contours"]

    @property
    def bands(self) -> Tensor:
        return self.sums["bands"]

    @property
    def band(self) -> Tensor:
        return self.sums["band"]

    def update(self, prediction: LabelMap, target: LabelMap) -> BoundaryCounts:
        """Count one label map (H, W) or a batch (B, H, W); returns the part that was added."""
        predicted, true = label_pair(prediction, target)
        if predicted.ndim not in (2, 3):
            raise UserError(f"boundaries need label maps (H, W) or (B, H, W), not {predicted.ndim} dimensions")
        added = self.empty()
        for p, t in zip(_images(predicted), _images(true), strict=True):
            added._count(p, t)
        self += added
        return added

    def scores(self, scored: Sequence[int] | None = None) -> BoundaryScores:
        """BF, boundary IoU and band scores, with means over `scored` classes (default: all)."""
        chosen = scored_classes(self.num_classes, scored)
        bf, precision, recall = contour_scores(self.contours.numpy())
        biou = inner_band_iou(self.bands.numpy())
        inside = ConfusionMatrix(self.num_classes)
        inside.counts.copy_(self.band)
        band_scores = inside.scores(chosen)
        return BoundaryScores(
            tolerance=self.tolerance,
            width=self.width,
            scored=tuple(chosen),
            mbf=float(mean_present(bf[chosen])),
            mbiou=float(mean_present(biou[chosen])),
            band_miou=band_scores.miou,
            band_accuracy=band_scores.oa,
            bf=bf,
            precision=precision,
            recall=recall,
            biou=biou,
            band_iou=band_scores.iou,
        )

    def _count(self, predicted: Tensor, true: Tensor) -> None:
        """Add one image (H, W), strip by strip; a strip's halo makes its counts those of the whole image."""
        halo = math.ceil(max(self.tolerance + 1, self.width))
        height, width = predicted.shape
        for rows, core in _strips(height, width, halo):
            p, t = compact_pair(predicted[rows], true[rows], self.num_classes, self.ignore_index)
            ignored = t == self.num_classes
            p_bits, t_bits = (list(class_bits(labels, self.num_classes)) for labels in (p, t))
            self._count_contours(p, t, p_bits, t_bits, ignored, core)
            self._count_bands(p, t, p_bits, t_bits, ignored, core)

    def _count_contours(
        self, p: Tensor, t: Tensor, p_bits: list[Tensor], t_bits: list[Tensor], ignored: Tensor, core: slice
    ) -> None:
        p_contour, t_contour = contour(p), contour(t)
        p_matched = _has_partner(p_bits, p_contour, t_bits, t_contour, self.tolerance)
        t_matched = _has_partner(t_bits, t_contour, p_bits, p_contour, self.tolerance)
        # A partner within the tolerance is on a contour or not by its neighbours, one pixel further: where none of
        # those is ignored, nothing that is counted depends on what the ignored pixels hide.
        judged = clear_of(ignored, self.tolerance + 1)
        self.contours.add_(
            torch.stack(
                [
                    self._per_class(t, t_matched & judged, core),
                    self._per_class(t, t_contour & judged, core),
                    self._per_class(p, p_matched & judged, core),
                    self._per_class(p, p_contour & judged, core),
                ],
                dim=1,
            )
        )

    def _count_bands(
        self, p: Tensor, t: Tensor, p_bits: list[Tensor], t_bits: list[Tensor], ignored: Tensor, core: slice
    ) -> None:
        p_near, t_near = near_other_class(p_bits, self.width), near_other_class(t_bits, self.width)
        judged = clear_of(ignored, self.width)
        self.bands.add_(
            torch.stack(
                [
                    self._per_class(t, (t == p) & t_near & p_near & judged, core),
                    self._per_class(t, t_near & judged, core),
                    self._per_class(p, p_near & judged, core),
                ],
                dim=1,
            )
        )
        inside = t_near[core]
        self.band.add_(confusion_counts(p[core][inside], t[core][inside], self.num_classes, None))

    def _per_class(self, labels: Tensor, where: Tensor, core: slice) -> Tensor:
        return torch.bincount(labels[core][where[core]], minlength=self.num_classes).cpu()


def boundary_counts(
    prediction: LabelMap,
    target: LabelMap,
    num_classes: int,
    tolerance: float = 3,
    width: float = 3,
    ignore_index: int | None = 255,
) -> BoundaryCounts:
    """The boundary sums of one label map (H, W) or a batch (B, H, W)."""
    return BoundaryCounts(num_classes, tolerance, width, ignore_index).update(prediction, target)


def contour_scores(
    contours: NDArray[Any],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """BF, precision and recall per class (..., C) from sums (..., C, 4) of contour pixels.

    The four are: true and matched, true, predicted and matched, predicted. A class with a contour in neither
    map is NaN; one that has a contour in only one of them scores 0.
    """
    t_matched, t_all, p_matched, p_all = (contours[..., k].astype(np.float64) for k in range(4))
    present = t_all + p_all > 0
    precision, recall = ratio(p_matched, p_all, present), ratio(t_matched, t_all, present)
    product, total = 2 * precision * recall, precision + recall
    bf = np.where(total > 0, product / np.where(total > 0, total, 1), total)  # 0 or NaN as the total is
    return bf, precision, recall


def inner_band_iou(bands: NDArray[Any]) -> NDArray[np.float64]:
    """Boundary IoU per class (..., C) from sums (..., C, 3) of inner-band pixels: shared, true, predicted.

    NaN for a class with no band in either map.
    """
    both, true, predicted = (bands[..., k].astype(np.float64) for k in range(3))
    union = true + predicted - both
    return ratio(both, union, union > 0)


def _has_partner(
    bits: list[Tensor], on_contour: Tensor, other_bits: list[Tensor], other_contour: Tensor, tolerance: float
) -> Tensor:
    """Contour pixels with a contour pixel of the same class in the other map within the tolerance."""
    found = torch.zeros_like(on_contour)
    for own, other in zip(bits, other_bits, strict=True):
        found |= (disk_or(other * other_contour, tolerance) & own) != 0
    return found & on_contour


def _images(labels: Tensor) -> Sequence[Tensor]:
    return [labels] if labels.ndim == 2 else labels.unbind()


def _strips(height: int, width: int, halo: int) -> Iterator[tuple[slice, slice]]:
    """Row ranges that cover the image once: (rows with halo, the part of those rows that is counted)."""
    step = max(halo, _STRIP // max(width, 1), 1)
    for start in range(0, height, step):
        first, stop = max(start - halo, 0), min(start + step, height)
        yield slice(first, min(stop + halo, height)), slice(start - first, stop - first)
