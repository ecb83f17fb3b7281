"""Adds up overlapping tiles, strip after strip, holding only the sums that later tiles still change.

A tile's whole-number probabilities are weighted and added along the columns; columns that no later tile of the strip
touches go on to be weighted and added along the rows; rows that no later strip touches are finished. What is held:
one tile of open columns, and for the whole width the rows shared with the next strip.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crispseg.predict.evaluate import CERTAIN
from crispseg.predict.plan import ONE, ONE_BITS, ScenePlan
from crispseg.raster.products import NODATA, SURE, OpenBand, Products


class Blender:
    """Feed it the strips' tiles in order; at the end of each strip from `first_strip` on it gives a band.

    The strips before that only add to the sums of later ones: feed it those that overlap the first.
    """

    def __init__(self, plan: ScenePlan, first_strip: int, classes: int, device: torch.device, products: Products):
        self.plan = plan
        self.first_strip = first_strip
        self.device = device
        self.classes = classes
        self.products = products
        self.row_weights = torch.from_numpy(plan.rows.weights).to(device)
        self.col_weights = torch.from_numpy(plan.cols.weights).to(device)
        self.open_columns = torch.zeros(classes, plan.rows.tile, plan.cols.tile, dtype=torch.int32, device=device)
        self.scratch = torch.empty_like(self.open_columns)  # memory that is taken anew for every tile goes to pieces
        self.carried = torch.zeros(classes, plan.carried_rows, plan.cols.length, dtype=torch.int32, device=device)
        self.carried_over = 0  # how many of these rows hold sums

    def add(self, strip: int, column: int, probabilities: Tensor | None, present: NDArray[np.bool_]) -> OpenBand | None:
        """One tile: (classes, tile, tile) whole numbers, or None where the tile has no data at all."""
        if column == 0:
            self._begin_strip(strip)
        if probabilities is not None:
            self.open_columns += torch.mul(probabilities, self.col_weights[column], out=self.scratch)
        first, last = self.plan.cols.finished(column)
        if last > first:
            self._finish_columns(strip, column, first, last, present)
        self._shift_open_columns(column)
        if column < len(self.plan.cols.starts) - 1:
            return None
        return self._end_strip(strip)

    def _begin_strip(self, strip: int) -> None:
        first, last = self.plan.rows.finished(strip)
        size = (last - first, self.plan.cols.length)
        self.labels = torch.empty(size, dtype=torch.uint8, device=self.device)
        self.best = torch.empty(size if self.products.confidence else (0, 0), dtype=torch.uint8, device=self.device)
        shares = (self.classes, *size) if self.products.probabilities else (0, 0, 0)
        self.shares = torch.empty(shares, dtype=torch.uint8, device=self.device)
        self.present = np.zeros(size, bool)

    def _finish_columns(self, strip: int, column: int, first: int, last: int, present: NDArray[np.bool_]) -> None:
        """Columns [first, last) of this strip are complete: add them to the rows above and split off finished rows."""
        left = first - self.plan.cols.starts[column]
        sums = self.scratch[:, :, : last - first]  # (classes, tile, columns)
        torch.add(self.open_columns[:, :, left : left + last - first], ONE // 2, out=sums)
        sums >>= ONE_BITS  # up to CERTAIN
        sums *= self.row_weights[strip][:, None]
        sums[:, : self.carried_over] += self.carried[:, : self.carried_over, first:last]
        top, bottom = self.plan.rows.finished(strip)
        start = self.plan.rows.starts[strip]
        self._keep_finished(sums[:, top - start : bottom - start], first, last)
        self.present[:, first:last] = present[top - start : bottom - start, left : left + last - first]
        handed_on = self._handed_on(strip)
        self.carried[:, :handed_on, first:last] = sums[:, self.plan.rows.tile - handed_on :]

    def _keep_finished(self, sums: Tensor, first: int, last: int) -> None:
        best, labels = sums.max(dim=0)
        self.labels[:, first:last] = torch.where(best > 0, labels, NODATA).to(torch.uint8)
        if self.products.confidence:
            self.best[:, first:last] = _as_byte(best)
        if self.products.probabilities:
            self.shares[:, :, first:last] = _as_byte(sums)

    def _shift_open_columns(self, column: int) -> None:
        starts = self.plan.cols.starts
        if column == len(starts) - 1:
            self.open_columns.zero_()
            return
        step = starts[column + 1] - starts[column]
        kept = self.scratch[:, :, step:].copy_(self.open_columns[:, :, step:])
        self.open_columns.zero_()
        self.open_columns[:, :, :-step] = kept

    def _handed_on(self, strip: int) -> int:
        starts = self.plan.rows.starts
        return 0 if strip == len(starts) - 1 else self.plan.rows.tile - (starts[strip + 1] - starts[strip])

    def _end_strip(self, strip: int) -> OpenBand | None:
        self.carried_over = self._handed_on(strip)
        if strip < self.first_strip:
            return None
        top = self.plan.rows.finished(strip)[0]
        return OpenBand(strip, top, (self.labels, self.best, self.shares), self.present, self.products)


def _as_byte(sums: Tensor) -> Tensor:
    """Sums up to CERTAIN * ONE as 0 ... SURE, rounded; SURE * CERTAIN * ONE just fits 32 bits."""
    whole = CERTAIN * ONE
    return torch.div(sums * SURE + whole // 2, whole, rounding_mode="floor").to(torch.uint8)
