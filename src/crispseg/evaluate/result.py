"""The outcome of an evaluation: what was counted in every image, and the scores made from the sums."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np

from crispseg import __version__
from crispseg.data.folder import Folder
from crispseg.evaluate.conditions import Conditions
from crispseg.evaluate.kept import KeptMap
from crispseg.evaluate.worst import WorstWindow
from crispseg.metrics import (
    Accumulator,
    BoundaryCounts,
    BoundaryScores,
    CalibrationCounts,
    ConfusionMatrix,
    ConfusionScores,
    Reliability,
)
from crispseg.metrics.scoring import number

A = TypeVar("A", bound=Accumulator)


@dataclasses.dataclass(frozen=True)
class ImageCounts:
    """What one image adds."""

    index: int
    name: str
    confusion: ConfusionMatrix
    calibration: CalibrationCounts
    boundary: BoundaryCounts | None
    spectrum: dict[str, float]  # E_high / E_low by block; empty for most images
    prediction: KeptMap | None = None


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Counts of all images in the order of the split. Scores are made from their sums, never from means of scores."""

    model: str  # name of the architecture
    source: str  # where the model came from
    conditions: Conditions
    images: tuple[ImageCounts, ...]
    worst: tuple[WorstWindow, ...] = ()
    notes: tuple[str, ...] = ()  # what a reader has to know
    folder: Folder | None = dataclasses.field(default=None, compare=False, repr=False)  # to draw from

    @functools.cached_property
    def confusion(self) -> ConfusionMatrix:
        return _sum(image.confusion for image in self.images)

    @functools.cached_property
    def scores(self) -> ConfusionScores:
        return self.confusion.scores(self.conditions.protocol.scored_ids)

    @functools.cached_property
    def boundary(self) -> BoundaryScores | None:
        counts = [image.boundary for image in self.images if image.boundary is not None]
        return _sum(counts).scores(self.conditions.protocol.scored_ids) if counts else None

    @functools.cached_property
    def reliability(self) -> Reliability:
        return _sum(image.calibration for image in self.images).reliability()

    @functools.cached_property
    def spectrum(self) -> dict[str, float]:
        """Mean E_high / E_low of each block over the images that were looked at."""
        seen = [image.spectrum for image in self.images if image.spectrum]
        return {block: float(np.mean([ratios[block] for ratios in seen])) for block in (seen[0] if seen else ())}

    @property
    def headline(self) -> dict[str, float | None]:
        """The figures that are quoted, by their usual names, as fractions; None where not defined."""
        figures = {"mIoU": self.scores.miou, "mF1": self.scores.mf1, "OA": self.scores.oa}
        if self.boundary is not None:
            figures |= boundary_means(self.boundary)
        return {name: number(value) for name, value in (figures | {"ECE": self.reliability.ece}).items()}

    def image_rows(self) -> list[dict[str, Any]]:
        """One row per image: its own scores by name."""
        return [self._image_row(image) for image in self.images]

    def _image_row(self, image: ImageCounts) -> dict[str, Any]:
        protocol = self.conditions.protocol
        scores = image.confusion.scores(protocol.scored_ids)
        row: dict[str, Any] = {"image": image.name, "pixels": int(image.confusion.counts.sum())}
        row |= {"mIoU": number(scores.miou), "mF1": number(scores.mf1), "OA": number(scores.oa)}
        if image.boundary is not None:
            means = boundary_means(image.boundary.scores(protocol.scored_ids))
            row |= {name: number(value) for name, value in means.items()}
        row["ECE"] = number(image.calibration.ece())
        return row | {f"IoU {name}": number(scores.iou[i]) for i, name in enumerate(protocol.classes)}

    def to_dict(self) -> dict[str, Any]:
        """All of it but the pictures, for scores.json."""
        names = self.conditions.protocol.classes
        return {
            "crispseg": __version__,
            "model": self.model,
            "source": self.source,
            "conditions": self.conditions.to_dict(),
            "notes": list(self.notes),
            "headline": self.headline,
            "scores": self.scores.to_dict(names),
            "boundary": None if self.boundary is None else self.boundary.to_dict(names),
            "calibration": self.reliability.to_dict(),
            "spectrum": {name: number(value) for name, value in self.spectrum.items()},
            "confusion": self.confusion.counts.tolist(),
            "images": self.image_rows(),
        }


def boundary_means(scores: BoundaryScores) -> dict[str, float]:
    tolerance, width = f"{scores.tolerance:g}px", f"{scores.width:g}px"
    return {
        f"BF@{tolerance}": scores.mbf,
        f"BIoU@{width}": scores.mbiou,
        f"band mIoU@{width}": scores.band_miou,
        f"band accuracy@{width}": scores.band_accuracy,
    }


def _sum(counts: Iterable[A]) -> A:
    first, *others = counts
    total = first.empty()
    for part in (first, *others):
        total += part
    return total
