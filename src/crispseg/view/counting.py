"""How many pixels and how much ground each class has: counted over every pixel, in the background."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from crispseg.errors import UserError
from crispseg.geo.areas import ClassAreas
from crispseg.geo.reader import explaining_damage, open_raster
from crispseg.geo.writer import BLOCK, NODATA
from crispseg.raster.source import Window

if TYPE_CHECKING:
    from crispseg.view.scene import ClassLayer


class Counting:
    """Starts when first asked, and can be asked at any time how far it is."""

    def __init__(self, layers: dict[str, ClassLayer]) -> None:
        self._layers = layers
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._rows_done = 0
        self._tables: dict[str, list[dict[str, Any]]] = {}
        self._problem = ""

    def state(self) -> dict[str, Any]:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="crisp-count", daemon=True)
                self._thread.start()
        rows = sum(layer.raster.grid.height for layer in self._layers.values())
        unit = next(iter(self._layers.values())).raster.grid.area_unit
        done = len(self._tables) == len(self._layers)
        return {
            "done": done,
            "progress": self._rows_done / max(rows, 1),
            "unit": unit,
            "maps": dict(self._tables) if done else {},
            "problem": self._problem,
        }

    def wait(self) -> dict[str, Any]:
        """The finished state."""
        self.state()
        assert self._thread is not None
        self._thread.join()
        if self._problem:
            raise UserError(self._problem)
        return self.state()

    def _run(self) -> None:
        try:
            for name, layer in self._layers.items():
                self._tables[name] = self._count(layer)
        except UserError as error:
            self._problem = str(error)

    def _count(self, layer: ClassLayer) -> list[dict[str, Any]]:
        grid, path = layer.raster.grid, layer.raster.path
        areas = ClassAreas(grid)
        with open_raster(path) as dataset:
            for top in range(0, grid.height, BLOCK):
                window = Window(top, 0, min(BLOCK, grid.height - top), grid.width)
                where = ((top, top + window.height), (0, grid.width))
                with explaining_damage(path, window):
                    values, has_data = dataset.read(window=where), dataset.read_masks(1, window=where) > 0
                areas.add(top, np.where(has_data, layer.numbers(values), np.uint8(NODATA)))
                self._rows_done += window.height
        return [
            {"id": row["id"], "pixels": row["pixels"], "area": row["area"], "share": row["share"]}
            for row in areas.table(tuple(layer.legend.names))
        ]
