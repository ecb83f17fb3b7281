"""The predicted map of every image, kept packed: what the report draws after all was counted."""

from __future__ import annotations

import dataclasses
import zlib

import numpy as np
from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True)
class KeptMap:
    """Class ids (H, W) in a few percent of their size; outlines are all that costs."""

    height: int
    width: int
    packed: bytes

    @classmethod
    def of(cls, ids: NDArray[np.uint8]) -> KeptMap:
        height, width = ids.shape
        return cls(height, width, zlib.compress(ids.tobytes(), 1))

    def ids(self) -> NDArray[np.uint8]:
        return np.frombuffer(zlib.decompress(self.packed), np.uint8).reshape(self.height, self.width)
