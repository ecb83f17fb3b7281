"""Where the tiles lie and how they are blended.

An axis of the scene is cut into equally spaced tiles that overlap by at least `overlap` pixels. The outer quarter
of the overlap is never used (`trim`: there the model lacks context), so the scene is thought to go on by `trim`
pixels on every side, by reflection. Weights are whole numbers that sum to exactly `ONE` at every pixel: blending
whole-number probabilities with them gives the same sum in any order, on any machine.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
from numpy.typing import NDArray

from crispseg.errors import UserError

ONE_BITS = 8
ONE = 2**ONE_BITS  # what the weights of one axis sum to
SMALLEST_TILE = 32  # one pixel of the models' coarsest features: smaller tiles make maps that mean nothing
_SHRUNK_MULTIPLE = 32  # tiles of scenes smaller than a tile end on the models' coarsest stride


@dataclasses.dataclass(frozen=True)
class Axis:
    """One side of the scene: tile k covers the pixels starts[k] ... starts[k] + tile - 1, some beyond the scene."""

    length: int
    tile: int
    overlap: int
    starts: tuple[int, ...]

    def finished(self, k: int) -> tuple[int, int]:
        """The scene's pixels [from, to) that no tile after k touches and no tile before k finished."""
        first = 0 if k == 0 else max(0, self.starts[k])
        last = self.length if k == len(self.starts) - 1 else max(0, self.starts[k + 1])
        return first, min(last, self.length)

    def first_touching(self, k: int) -> int:
        """The earliest tile that still adds to the pixels tile k finishes."""
        return next(j for j in range(k + 1) if self.starts[j] + self.tile > self.starts[k])

    @functools.cached_property
    def weights(self) -> NDArray[np.int32]:
        """(tiles, tile) whole numbers; over every pixel of the scene they sum to ONE."""
        window = _window(self.tile, self.overlap)
        trim = trimmed(self.overlap)
        total = np.zeros(max(self.starts[-1] + self.tile, self.length) + trim)
        for start in self.starts:
            total[start + trim : start + trim + self.tile] += window
        total[total == 0] = 1.0  # the trimmed pixels beyond the scene
        shares = [window / total[start + trim : start + trim + self.tile] for start in self.starts]
        return _whole_numbers(shares, self.starts, len(total), trim)


@dataclasses.dataclass(frozen=True)
class ScenePlan:
    """All tiles of a scene, row after row; a row of tiles is a strip, and the pixel rows it finishes a band."""

    rows: Axis
    cols: Axis

    @property
    def strips(self) -> int:
        return len(self.rows.starts)

    @property
    def tiles(self) -> int:
        return self.strips * len(self.cols.starts)

    @property
    def carried_rows(self) -> int:
        """Rows of unfinished sums that a strip hands to the next, at most."""
        starts, tile = self.rows.starts, self.rows.tile
        return max((tile - (b - a) for a, b in itertools.pairwise(starts)), default=0)


def make_plan(height: int, width: int, tile: int, overlap: int | None = None) -> ScenePlan:
    """Cover `height` x `width` pixels with tiles of side `tile` that overlap by at least `overlap` (a quarter)."""
    overlap = tile // 4 if overlap is None else overlap
    if height < 1 or width < 1:
        raise UserError(f"the scene has no pixels: {height} rows and {width} columns")
    if tile < 1:
        raise UserError(f"the tile size must be at least 1, not {tile}")
    if not 0 <= overlap < tile:
        raise UserError(f"the overlap must be at least 0 and less than the tile size {tile}, not {overlap}")
    return ScenePlan(make_axis(height, tile, overlap), make_axis(width, tile, overlap))


def plan_windows(height: int, width: int, tile: int, overlap: int) -> ScenePlan:
    """As `make_plan`; a tile of 0 is the whole image, without anything beyond its edges."""
    if tile:
        return make_plan(height, width, tile, overlap)
    return ScenePlan(Axis(height, height, 0, (0,)), Axis(width, width, 0, (0,)))


def check_tile(tile: int) -> None:
    """Refuse tiles in which a network sees nothing of what surrounds a pixel."""
    if 0 < tile < SMALLEST_TILE:
        raise UserError(
            f"tiles of {tile} px are too small to see anything in; give at least {SMALLEST_TILE}, better 512 or more"
        )


def make_axis(length: int, tile: int, overlap: int) -> Axis:
    trim = trimmed(overlap)
    span = length + 2 * trim
    tile = min(tile, -(-span // _SHRUNK_MULTIPLE) * _SHRUNK_MULTIPLE)
    if tile >= span:
        return Axis(length, tile, overlap, (-trim,))
    steps = -(-(span - tile) // (tile - overlap))
    return Axis(length, tile, overlap, tuple(k * (span - tile) // steps - trim for k in range(steps + 1)))


def trimmed(overlap: int) -> int:
    """Pixels at each edge of a tile that get no weight."""
    return overlap // 4


def _window(tile: int, overlap: int) -> NDArray[np.float64]:
    """Nothing in the trim, a raised cosine through the rest of the overlap, one in the middle."""
    trim = trimmed(overlap)
    ramp_length = overlap - 2 * trim
    distance = np.minimum(np.arange(tile), np.arange(tile)[::-1])  # to the nearer edge of the tile
    position = np.clip((distance - trim + 0.5) / max(ramp_length, 1), 0.0, 1.0)
    ramp = np.sin(0.5 * np.pi * position) ** 2 if ramp_length else np.ones(tile)
    return np.where(distance < trim, 0.0, ramp)


def _whole_numbers(
    shares: list[NDArray[np.float64]], starts: tuple[int, ...], span: int, trim: int
) -> NDArray[np.int32]:
    """Round each pixel's shares down to multiples of 1 / ONE and give the remainder to the largest share."""
    weights = [np.floor(share * ONE).astype(np.int32) for share in shares]
    tile = len(shares[0])
    total = np.zeros(span, np.int32)
    largest = np.zeros(span)
    owner = np.zeros(span, np.int64)
    for k, start in enumerate(starts):
        here = slice(start + trim, start + trim + tile)
        total[here] += weights[k]
        owner[here] = np.where(shares[k] > largest[here], k, owner[here])
        largest[here] = np.maximum(largest[here], shares[k])
    for k, start in enumerate(starts):
        here = slice(start + trim, start + trim + tile)
        mine = (owner[here] == k) & (largest[here] > 0)
        weights[k] += np.where(mine, ONE - total[here], 0).astype(np.int32)
    return np.stack(weights)
