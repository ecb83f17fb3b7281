"""How much ground each class covers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.geo.grid import Grid

_ROWS_AT_ONCE = 64  # weights are 8 bytes a pixel


class ClassAreas:
    """Pixels and ground area of every class id, added up row by row."""

    def __init__(self, grid: Grid):
        self.grid = grid
        self.pixels = np.zeros(256, np.int64)
        self.area = np.zeros(256)

    def add(self, top: int, classes: NDArray[np.uint8]) -> None:
        for start in range(0, len(classes), _ROWS_AT_ONCE):
            rows = classes[start : start + _ROWS_AT_ONCE]
            self.pixels += np.bincount(rows.ravel(), minlength=256)
            self.area += self.grid.sum_areas(rows, 256, top + start)

    def table(self, names: tuple[str, ...]) -> tuple[dict[str, Any], ...]:
        """One row per class: id, name, pixels, area and its share of what has data."""
        known = self.area[: len(names)]
        total = float(known.sum()) or 1.0
        return tuple(
            {
                "id": k,
                "class": name,
                "pixels": int(self.pixels[k]),
                "area": float(known[k]),
                "share": float(known[k]) / total,
            }
            for k, name in enumerate(names)
        )
