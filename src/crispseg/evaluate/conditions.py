"""What a score was made under: protocol, split, windows, augmentation, tolerance. Every saved number carries it."""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Sequence
from typing import Any

from crispseg.data.folder import Folder, Record
from crispseg.data.protocol import Labels, Protocol
from crispseg.errors import UserError
from crispseg.predict.evaluate import views

_ALIKE = 1.01  # how far pixel sizes of one data set may differ for a tolerance in metres


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the user may choose. None means: as the protocol says."""

    tile: int | None = None  # side of a window; 0 for whole images
    overlap: int | None = None
    tta: str = "none"  # or "flip", "d4"
    scales: tuple[float, ...] = (1.0,)  # the image is also shown at these sizes
    precision: str = "float32"  # or "bfloat16"
    tolerance: str = "3px"  # of the boundary scores: pixels, or metres as in 0.5m
    batch_size: int | None = None  # windows evaluated together; None: as many as fit
    worst: int = 12  # windows kept as pictures
    spectrum_images: int = 32  # images whose middle window is looked at for the spectral ratio


@dataclasses.dataclass(frozen=True)
class Conditions:
    protocol: Protocol
    split: str
    images: int
    tile: int
    overlap: int
    tta: str
    scales: tuple[float, ...]
    precision: str
    boundary_labels: Labels | None  # None where the data has none to score boundaries on
    tolerance: float  # pixels
    metres: float | None  # the same on the ground, where the data has a scale

    @property
    def labels(self) -> Labels:
        return self.protocol.labels(self.split)

    @property
    def augmentation(self) -> str:
        """The test-time augmentation in words."""
        if self.scales == (1.0,):
            return self.tta
        sizes = f"scales {' '.join(f'{scale:g}' for scale in self.scales)}"
        return sizes if self.tta == "none" else f"{self.tta}, {sizes}"

    @property
    def line(self) -> str:
        """The sentence that stands beside every score."""
        used = dataclasses.replace(self.protocol, tile=self.tile, overlap=self.overlap)
        text = used.describe(self.split, self.augmentation)
        if used != self.protocol:
            # other windows make it no other protocol, but they have to be seen
            text = text.replace(f"#{used.hash}", f"#{self.protocol.hash}")
            text += f" (the protocol has {_window(self.protocol)})"
        text += f"; {self.images} image{'' if self.images == 1 else 's'}, {self.precision}"
        if self.boundary_labels is not None:
            text += f", boundaries on {self.boundary_labels} labels within {self.tolerance_text}"
        return text

    @property
    def tolerance_text(self) -> str:
        return f"{self.tolerance:g} px" + (f" ({self.metres:g} m)" if self.metres is not None else "")

    def to_dict(self) -> dict[str, Any]:
        protocol = self.protocol
        return {
            "protocol": protocol.name,
            "hash": protocol.hash,
            "line": self.line,
            "dataset": protocol.dataset,
            "split": self.split,
            "images": self.images,
            "classes": list(protocol.classes),
            "averaged": list(protocol.scored),
            "ignored": list(protocol.ignored),
            "labels": self.labels,
            "boundary_labels": self.boundary_labels,
            "confusion": "global",
            "tile": self.tile,
            "overlap": self.overlap,
            "tta": self.augmentation,
            "precision": self.precision,
            "tolerance_px": self.tolerance,
            "tolerance_m": self.metres,
            "resolution": protocol.resolution,
        }


def _window(protocol: Protocol) -> str:
    return f"tile {protocol.tile} overlap {protocol.overlap}" if protocol.tile else "whole images"


def settle(settings: Settings, folder: Folder, split: str | None) -> Conditions:
    """The conditions of an evaluation, checked before anything is computed."""
    protocol = folder.protocol
    split = split or protocol.scored_split
    records = folder.records(split)
    views(settings.tta)  # refuses an unknown one
    if not settings.scales or min(settings.scales) <= 0:
        raise UserError(f"scales must be more than 0, not {' '.join(map(str, settings.scales)) or 'none'}")
    if settings.worst < 0:
        raise UserError(f"the number of worst windows must be at least 0, not {settings.worst}")
    tile, overlap = _windows(settings, protocol)
    tolerance, metres = _tolerance(settings.tolerance, protocol.resolution, records)
    labels = protocol.labels(split)
    require_labels(folder, split, records, labels, "score against")
    with_edges = all(protocol.boundary_labels in record.masks for record in records)
    return Conditions(
        protocol=protocol,
        split=split,
        images=len(records),
        tile=tile,
        overlap=overlap,
        tta=settings.tta,
        scales=settings.scales,
        precision=settings.precision,
        boundary_labels=protocol.boundary_labels if with_edges else None,
        tolerance=tolerance,
        metres=metres,
    )


def require_labels(folder: Folder, split: str, records: Sequence[Record], labels: Labels, purpose: str) -> None:
    """Refuse images that have none of the labels that are needed to `purpose`."""
    bare = [record.name for record in records if labels not in record.masks]
    if bare:
        raise UserError(
            f"{len(bare)} of {len(records)} images in the {split} split of {folder.root} have no {labels} labels to "
            f"{purpose}, e.g. {bare[0]}; choose another split"
        )


def _windows(settings: Settings, protocol: Protocol) -> tuple[int, int]:
    tile = protocol.tile if settings.tile is None else settings.tile
    if tile < 0:
        raise UserError(f"the tile size must be at least 0 (whole images), not {tile}")
    if tile == 0:
        return 0, 0
    overlap = settings.overlap
    if overlap is None:
        overlap = protocol.overlap if tile == protocol.tile else tile // 4
    if not 0 <= overlap < tile:
        raise UserError(f"the overlap must be at least 0 and less than the tile size {tile}, not {overlap}")
    return tile, overlap


def _tolerance(text: str, resolution: float | None, records: Sequence[Record]) -> tuple[float, float | None]:
    """Pixels and metres of a length such as 3, 3px or 0.5m; where the protocol has no scale, the images may tell."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(px|m|)\s*", text)
    if found is None:
        raise UserError(f"the tolerance {text!r} is no length; give pixels as in 3px, or metres as in 0.5m")
    value, unit = float(found[1]), found[2]
    if unit == "m":
        resolution = resolution or _told_by_images(records)
        if resolution is None:
            raise UserError(f"a tolerance of {text} needs data with a known scale; give it in pixels, as in 3px")
        value /= resolution
    if value < 1:
        raise UserError(f"the tolerance {text} is {value:g} px; it must be at least one pixel")
    return value, None if resolution is None else value * resolution


def _told_by_images(records: Sequence[Record]) -> float | None:
    """Metres per pixel, where every image is a raster that tells them."""
    try:
        from crispseg.geo.ground import read_ground

        sizes = [read_ground([path]).middle for path in dict.fromkeys(str(record.image) for record in records)]
    except (ImportError, UserError):  # a picture that GDAL does not read tells nothing
        return None
    told = [size for size in sizes if size is not None]
    if not told or len(told) < len(sizes):
        return None
    if max(told) > _ALIKE * min(told):
        raise UserError(
            f"pixels of these images are {min(told):g} to {max(told):g} m: a tolerance in metres is another number of "
            "pixels in each; give it in pixels, as in 3px"
        )
    return statistics.median(told)
