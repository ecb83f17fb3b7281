"""Finished rows of a scene's maps, and their way here from an accelerator."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crispseg.errors import UserError

NODATA = 255
SURE = 254  # confidence and probability one in the maps; 255 is no data


@dataclasses.dataclass(frozen=True)
class Products:
    """What is kept of every pixel beside its class."""

    confidence: bool = False
    probabilities: bool = False


@dataclasses.dataclass
class Band:
    """Finished pixel rows `top` ... of the scene, full width. Maps are uint8, 255 where the scene has no data."""

    index: int
    top: int
    classes: NDArray[np.uint8]  # (rows, width)
    confidence: NDArray[np.uint8] | None = None  # (rows, width)
    probabilities: NDArray[np.uint8] | None = None  # (classes, rows, width)


class OpenBand:
    """A band whose maps are on their way from an accelerator; `finish` waits for them and masks what has no data."""

    def __init__(self, index: int, top: int, maps: Sequence[Tensor], present: NDArray[np.bool_], products: Products):
        self.index, self.top, self.present, self.products = index, top, present, products
        self.maps = [_to_host(x) for x in maps]  # labels, confidence, probabilities; the last two may be empty
        self.arrived = torch.cuda.Event() if maps[0].is_cuda else None
        if self.arrived is not None:
            self.arrived.record()

    def finish(self) -> Band:
        if self.arrived is not None:
            self.arrived.synchronize()
        labels, confidence, probabilities = (x.numpy() for x in self.maps)
        unscored = (labels == NODATA) & self.present
        if unscored.any():
            row = self.top + int(np.argmax(unscored.any(axis=1)))
            raise UserError(f"the model gave no finite scores near row {row}; its weights may be damaged")
        band = Band(self.index, self.top, labels)
        if self.products.confidence:
            band.confidence = confidence
        if self.products.probabilities:
            band.probabilities = probabilities
        absent = ~self.present
        if absent.any():
            for values in (band.classes, band.confidence, band.probabilities):
                if values is not None:
                    values[..., absent] = NODATA
        return band


def _to_host(x: Tensor) -> Tensor:
    """From CUDA the copy is only begun; page-locked memory lets it go on beside the computation."""
    if x.is_cuda:
        return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)
    return x.cpu()
