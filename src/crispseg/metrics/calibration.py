"""Does a confidence of 0.8 mean right eight times in ten? Calibration error and the reliability curve."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crispseg.errors import UserError
from crispseg.metrics.accumulate import Accumulator
from crispseg.metrics.labels import LabelMap, compact_pair, label_tensor
from crispseg.metrics.scoring import number


@dataclasses.dataclass(frozen=True)
class Reliability:
    """Per bin: mean confidence, share of right pixels (both NaN in an empty bin), and number of pixels."""

    edges: NDArray[np.float64]  # (bins + 1,)
    confidence: NDArray[np.float64]  # (bins,)
    accuracy: NDArray[np.float64]
    count: NDArray[np.int64]

    @property
    def ece(self) -> float:
        """Mean over pixels of |accuracy - confidence| of their bin; NaN without pixels."""
        total = self.count.sum()
        gap = np.where(self.count > 0, np.abs(self.accuracy - self.confidence), 0.0)
        return float((gap * self.count).sum() / total) if total else float("nan")

    def to_dict(self) -> dict[str, Any]:
        return {
            "ECE": number(self.ece),
            "edges": self.edges.tolist(),
            "confidence": [number(value) for value in self.confidence],
            "accuracy": [number(value) for value in self.accuracy],
            "count": self.count.tolist(),
        }


class CalibrationCounts(Accumulator):
    """Sums per equal-width bin of confidence, over any number of images.

    Bin k of n holds confidences in [k/n, (k+1)/n); the last one holds 1 too. Sums: `count` and `right`
    (int64), `confidence` (float64).
    """

    def __init__(self, bins: int = 15, ignore_index: int | None = 255) -> None:
        if bins < 1:
            raise UserError(f"a reliability curve needs at least one bin, not {bins}")
        super().__init__(
            {"bins": bins, "ignore_index": ignore_index},
            {
                "count": torch.zeros(bins, dtype=torch.int64),
                "right": torch.zeros(bins, dtype=torch.int64),
                "confidence": torch.zeros(bins, dtype=torch.float64),
            },
        )
        self.bins = bins
        self.ignore_index = ignore_index

    def update(self, probabilities: Tensor | NDArray[Any], target: LabelMap) -> CalibrationCounts:
        """Add class probabilities (B, C, H, W) with labels (B, H, W); returns the part that was added."""
        values = torch.as_tensor(probabilities).detach()
        true = label_tensor(target, "label map").to(values.device)
        if values.ndim != true.ndim + 1 or values.shape[:1] + values.shape[2:] != true.shape:
            raise UserError(
                f"probabilities {tuple(values.shape)} do not fit labels {tuple(true.shape)}; "
                "give (B, C, H, W) and (B, H, W)"
            )
        confidence, predicted = values.max(dim=1)
        predicted, true = compact_pair(predicted, true, values.shape[1], self.ignore_index)
        return self.update_maps(confidence, predicted == true, true != values.shape[1])

    def update_maps(
        self,
        confidence: Tensor | NDArray[Any],
        correct: Tensor | NDArray[np.bool_],
        valid: Tensor | NDArray[np.bool_] | None = None,
    ) -> CalibrationCounts:
        """Add the predicted class's probability and whether it was right, pixel by pixel, where `valid`."""
        values, right = (torch.as_tensor(x).detach().cpu() for x in (confidence, correct))
        if values.shape != right.shape:
            raise UserError(f"confidence {tuple(values.shape)} and correctness {tuple(right.shape)} differ in size")
        if valid is not None:
            where = torch.as_tensor(valid).cpu()
            values, right = values[where], right[where]
        values, right = values.reshape(-1).double(), right.reshape(-1).long()
        if values.numel() and not (values.min() >= -_SLACK and values.max() <= 1 + _SLACK):
            raise UserError(
                f"confidences reach from {values.min():.4g} to {values.max():.4g}; give probabilities "
                "between 0 and 1 (softmax of the logits)"
            )
        values = values.clamp(0, 1)
        index = (values * self.bins).long().clamp(max=self.bins - 1)
        added = self.empty()
        added.sums["count"] += torch.bincount(index, minlength=self.bins)
        added.sums["right"] += torch.bincount(index[right > 0], minlength=self.bins)
        added.sums["confidence"] += torch.bincount(index, weights=values, minlength=self.bins)
        self += added
        return added

    def reliability(self) -> Reliability:
        count, right, confidence = (self.sums[name].numpy() for name in ("count", "right", "confidence"))
        filled = count > 0
        return Reliability(
            edges=np.linspace(0, 1, self.bins + 1),
            confidence=np.where(filled, confidence / np.maximum(count, 1), np.nan),
            accuracy=np.where(filled, right / np.maximum(count, 1), np.nan),
            count=count.copy(),
        )

    def ece(self) -> float:
        """Expected calibration error, between 0 and 1."""
        return self.reliability().ece


_SLACK = 1e-3  # a softmax in half precision may miss 1 by so much
