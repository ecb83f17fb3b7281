"""What an analysis found: numbers of every variant, and of some images all that their pictures are drawn from."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg import __version__
from crispseg.analysis.gates import BlockGates, BlockTemperatures
from crispseg.analysis.mistakes import Mistakes
from crispseg.analysis.prototypes import Prototypes
from crispseg.data.protocol import Labels, Protocol
from crispseg.metrics.scoring import number

AS_TRAINED, GATES_OFF, AT_MEAN, AGAINST = "as trained", "gates off", "y^ at its mean", "against"
Map = NDArray[np.float32]  # (h, w)
Ids = NDArray[np.uint8]  # (H, W)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the user may choose."""

    images: int = 16  # of the split, evenly from first to last; 0 for all
    pictures: int = 4  # of those, drawn
    limit: int = 1024  # side of the middle window that is taken of a larger image
    band: float = 3  # px on both sides of a true boundary
    cutoff: float = 0.5  # of Nyquist: above it a frequency is high
    focus: str | None = None  # the class whose prototypes are drawn one by one; None: the most frequent one


@dataclasses.dataclass(frozen=True)
class Conditions:
    """What the numbers were made under."""

    protocol: Protocol
    split: str
    images: int
    of_images: int
    cut: int  # how many of the images were larger than the limit
    labels: Labels
    settings: Settings

    @property
    def line(self) -> str:
        settings, protocol = self.settings, self.protocol
        windows = f"larger ones ({self.cut}) cut to their middle {settings.limit} px" if self.cut else "whole"
        left_out = f" ({', '.join(protocol.ignored)} ignored)" if protocol.ignored else ""
        return (
            f"{protocol.name} #{protocol.hash}: {self.split}, {self.images} of {self.of_images} images, {windows}, "
            f"each shown to the model at once; {len(protocol.scored)} classes averaged{left_out}, {self.labels} "
            f"labels, band {settings.band:g} px, cut-off {settings.cutoff:g} of Nyquist, float32"
        )

    def to_dict(self) -> dict[str, Any]:
        protocol = self.protocol
        return {
            "line": self.line,
            "protocol": protocol.name,
            "hash": protocol.hash,
            "dataset": protocol.dataset,
            "split": self.split,
            "images": self.images,
            "of_images": self.of_images,
            "cut": self.cut,
            "labels": self.labels,
            "classes": list(protocol.classes),
            **dataclasses.asdict(self.settings),
        }


@dataclasses.dataclass(frozen=True)
class Spectrum:
    """E_high / E_low by block: one value for every image."""

    mixer: dict[str, NDArray[np.float64]]
    block: dict[str, NDArray[np.float64]]

    def to_dict(self) -> dict[str, Any]:
        return {place: {b: _summary(v) for b, v in getattr(self, place).items()} for place in ("mixer", "block")}


@dataclasses.dataclass(frozen=True)
class Variant:
    """One model, or the same model with its gates off or its mixers' outputs at their means, on all images."""

    label: str
    source: str
    mistakes: Mistakes
    spectrum: Spectrum | None  # None without a VSSD backbone

    def to_dict(self, protocol: Protocol) -> dict[str, Any]:
        return {
            "source": self.source,
            "figures": {name: number(value) for name, value in self.mistakes.figures(protocol.scored_ids).items()},
            "confusion_band": self.mistakes.band.tolist(),
            "confusion_interior": self.mistakes.interior.tolist(),
            "spectrum": None if self.spectrum is None else self.spectrum.to_dict(),
        }


@dataclasses.dataclass(frozen=True)
class Look:
    """One image, kept to be drawn. `predictions` and `activity` are by variant."""

    name: str
    window: tuple[int, int]  # top, left
    image: NDArray[np.uint8]  # (H, W, 3)
    truth: Ids
    band: NDArray[np.bool_]
    predictions: dict[str, Ids]
    activity: dict[str, dict[str, Map]]  # variant -> block -> map, of the last block of each stage
    won: Ids | None  # which prototype of the predicted class won
    cosines: NDArray[np.float32] | None  # (classes, K, h, w)


@dataclasses.dataclass(frozen=True)
class Analysis:
    model: str  # name of the architecture
    source: str
    conditions: Conditions
    names: tuple[str, ...]  # of the images
    variants: dict[str, Variant]
    gates: dict[str, tuple[BlockGates, ...]]  # by variant; only those with a DCO
    temperatures: dict[str, tuple[BlockTemperatures, ...]]  # by variant; only those with selective fusion
    # var(y^) / var(D V) of each block, mean over images, by variant (models as they are); only those with NC-SSD
    liveliness: dict[str, dict[str, float]]
    prototypes: Prototypes | None
    looks: tuple[Look, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """All numbers, for analysis.json."""
        protocol = self.conditions.protocol
        return {
            "crispseg": __version__,
            "model": self.model,
            "source": self.source,
            "conditions": self.conditions.to_dict(),
            "notes": list(self.notes),
            "images": list(self.names),
            "variants": {label: variant.to_dict(protocol) for label, variant in self.variants.items()},
            "gates": {label: [dataclasses.asdict(b) for b in blocks] for label, blocks in self.gates.items()},
            "temperatures": {
                label: [dataclasses.asdict(b) for b in blocks] for label, blocks in self.temperatures.items()
            },
            "liveliness": {
                label: {block: number(value) for block, value in ratios.items()}
                for label, ratios in self.liveliness.items()
            },
            "prototypes": None if self.prototypes is None else _prototypes(self.prototypes, protocol.classes),
        }


def _summary(values: NDArray[np.float64]) -> dict[str, Any]:
    return {
        "mean": number(float(values.mean())),
        "std": number(deviation(values)),
        "images": [number(value) for value in values],
    }


def deviation(values: NDArray[np.float64]) -> float:
    """Standard deviation over images; NaN for one alone."""
    return float(values.std(ddof=1)) if len(values) > 1 else float("nan")


def _prototypes(found: Prototypes, classes: tuple[str, ...]) -> dict[str, Any]:
    shares, entropy = found.shares, found.entropy
    return {
        "images": found.images,
        "margin": number(found.margin),
        "orthogonality": number(float(found.orthogonality.mean())),
        "classes": {
            name: {
                "pixels": found.pixels[i].tolist(),
                "shares": [number(share) for share in shares[i]],
                "used": int(found.used[i]),
                "entropy": number(entropy[i]),
                "orthogonality": float(found.orthogonality[i]),
                "steadiness": found.steadiness[i].tolist(),
            }
            for i, name in enumerate(classes)
        },
        "cosines": found.cosines.tolist(),
        "class_cosines": found.class_cosines.tolist(),
    }
