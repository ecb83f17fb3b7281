"""Which tiles pass the model together: as many as fit in memory, without changing what comes out.

Kernels round differently for different batch sizes and thread counts. On the CPU every tile is therefore evaluated
by itself on one thread, and the batch is the number of tiles evaluated side by side (which is also faster than many
threads on one tile). On an accelerator every batch is filled up to one size.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from crispseg import memory
from crispseg.errors import UserError
from crispseg.predict.evaluate import Evaluator
from crispseg.raster.source import Pixels

_BATCH_PIXELS = 2**24  # larger batches no longer speed up an accelerator
_BATCHES_AHEAD = 2  # handed to an accelerator before the oldest is waited for; bounds the memory they take
_USABLE = 0.7  # of the memory that is free at the start
_log = logging.getLogger(__name__)


class Tile(NamedTuple):
    strip: int
    column: int
    pixels: Pixels

    @property
    def has_data(self) -> bool:
        return bool(self.pixels.present.any())


class Scored(NamedTuple):
    """A tile and its (classes, h, w) probabilities; None where it has no data at all."""

    tile: Tile
    scores: Tensor | None


def scored(evaluator: Evaluator, tiles: Iterator[Tile], batch_size: int | None, scene_tiles: int) -> Generator[Scored]:
    """The tiles with their scores, in order. Without a batch size, free memory decides."""
    if evaluator.device.type == "cpu":
        return SideBySide(evaluator, batch_size).stream(tiles)
    return InBatches(evaluator, batch_size, scene_tiles).stream(tiles)


class SideBySide:
    """One tile per thread."""

    def __init__(self, evaluator: Evaluator, threads: int | None):
        self.evaluator = evaluator
        self.wanted = threads or torch.get_num_threads()
        self.measured = threads is not None or self.wanted == 1  # otherwise the first tile tells the memory needed
        self.waiting: collections.deque[tuple[Tile, Future[Tensor] | None]] = collections.deque()
        self._set_threads(self.wanted if self.measured else 1)

    def stream(self, tiles: Iterator[Tile]) -> Generator[Scored]:
        threads_before = torch.get_num_threads()
        torch.set_num_threads(1)  # blending, between the tiles, needs no more and would spin
        try:
            for tile in tiles:
                start = self._start if self.measured else self._start_and_measure
                self.waiting.append((tile, start(tile) if tile.has_data else None))
                # one more than there are threads, so that none is idle while the oldest is blended
                while len(self.waiting) > self.threads:
                    yield self._oldest()
            while self.waiting:
                yield self._oldest()
        finally:
            self.pool.shutdown(wait=True, cancel_futures=True)
            torch.set_num_threads(threads_before)

    def _set_threads(self, threads: int) -> None:
        self.threads = threads
        self.pool = ThreadPoolExecutor(
            threads, thread_name_prefix="crisp-tile", initializer=torch.set_num_threads, initargs=(1,)
        )

    def _start(self, tile: Tile) -> Future[Tensor]:
        return self.pool.submit(self.evaluator, [tile.pixels.values])

    def _start_and_measure(self, tile: Tile) -> Future[Tensor]:
        """Let the tile finish alone, and see how many like it fit."""
        self.measured = True
        before = memory.resident()
        memory.reset_peak()
        future = self._start(tile)
        self.pool.shutdown(wait=True)
        needed = max(1, memory.peak() - before)
        self._set_threads(max(1, min(self.wanted, int(_USABLE * memory.free() / needed))))
        return future

    def _oldest(self) -> Scored:
        tile, future = self.waiting.popleft()
        while future is not None:
            try:
                return Scored(tile, future.result()[0])
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            self.pool.shutdown(wait=True)  # the others end and free their memory
            self._set_threads(_halved(self.threads, self.evaluator, tile))
            future = self._start(tile)
        return Scored(tile, None)


class InBatches:
    """Batches of one size on an accelerator."""

    def __init__(self, evaluator: Evaluator, size: int | None, scene_tiles: int | None = None):
        self.evaluator = evaluator
        self.size = size or 0  # 0: not chosen yet
        self.scene_tiles = scene_tiles
        self.begun: collections.deque[torch.cuda.Event] = collections.deque()

    def stream(self, tiles: Iterator[Tile]) -> Generator[Scored]:
        group: list[Tile] = []
        for tile in tiles:
            group.append(tile)
            if tile.has_data and not self.size:
                self.size = self._fitting(tile)
            with_data = sum(t.has_data for t in group)
            if (with_data and with_data == self.size) or len(group) >= 4 * max(self.size, 1):
                yield from self._score(group)
                group = []
        yield from self._score(group)

    def _score(self, group: list[Tile]) -> Generator[Scored]:
        full = [tile for tile in group if tile.has_data]
        scores: list[Tensor] = []
        while len(scores) < len(full):
            part = full[len(scores) : len(scores) + self.size]
            try:
                scores.extend(self.evaluator([tile.pixels.values for tile in part], filled_to=self.size))
                self._wait_for_the_oldest()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self.size = _halved(self.size, self.evaluator, part[0])
        ready = iter(scores)
        for tile in group:
            yield Scored(tile, next(ready) if tile.has_data else None)

    def _wait_for_the_oldest(self) -> None:
        if self.evaluator.device.type == "cuda":
            self.begun.append(torch.cuda.Event())
            self.begun[-1].record()
            if len(self.begun) > _BATCHES_AHEAD:
                self.begun.popleft().synchronize()

    def _fitting(self, tile: Tile) -> int:
        """The largest power of two that fits and that the scene's tiles fill; powers of two so that small differences
        in memory do not matter."""
        shape = tile.pixels.values.shape
        limit = max(1, _BATCH_PIXELS // (shape[1] * shape[2]))
        if self.scene_tiles is not None:
            limit = min(limit, self.scene_tiles)
        if self.evaluator.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.evaluator.device)
            before = torch.cuda.memory_allocated(self.evaluator.device)
            try:
                self.evaluator([np.zeros_like(tile.pixels.values)])
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                return 1
            needed = torch.cuda.max_memory_allocated(self.evaluator.device) - before
            free = torch.cuda.mem_get_info(self.evaluator.device)[0]
            limit = max(1, min(limit, int(_USABLE * free / max(needed, 1))))
        return int(2 ** (limit.bit_length() - 1))


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def _halved(size: int, evaluator: Evaluator, tile: Tile) -> int:
    if evaluator.device.type == "cuda":
        torch.cuda.empty_cache()
    if size == 1:
        _, height, width = tile.pixels.values.shape
        raise UserError(
            f"not enough memory on {evaluator.device} for one tile of {height} x {width} pixels; "
            "choose a smaller tile size"
        )
    _log.warning("out of memory on %s: going on with %d tiles at a time", evaluator.device, size // 2)
    return size // 2
