"""The stream: tiles are read ahead by threads, evaluated, blended, and come out as finished bands."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from crispseg import memory
from crispseg.errors import UserError
from crispseg.models.base import SegmentationModel
from crispseg.predict.blend import Blender
from crispseg.predict.evaluate import Evaluator
from crispseg.predict.plan import ScenePlan
from crispseg.predict.schedule import Scored, Tile, scored
from crispseg.raster.products import Band, OpenBand, Products
from crispseg.raster.source import Pixels, Source, Window, read_reflected
from crispseg.threads import available_cores

_BYTES_AHEAD = {"cpu": 64 * 2**20, "cuda": 512 * 2**20}  # of tiles that are read and wait for the model
_MOST_AHEAD = 32
_WORKERS = {"cpu": 2, "cuda": 6}


@dataclasses.dataclass(frozen=True)
class Pace:
    """How fast to go; none of it changes what comes out."""

    batch_size: int | None = None  # tiles that are evaluated together; None: as many as fit in memory
    workers: int | None = None  # threads that read; None: chosen for the device

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise UserError(f"the batch size must be at least 1, not {self.batch_size}")
        if self.workers is not None and self.workers < 1:
            raise UserError(f"there must be at least 1 worker, not {self.workers}")

    def readers(self, device: torch.device) -> int:
        return self.workers or min(_WORKERS.get(device.type, 2), max(2, available_cores()))


def finished_bands(
    source: Source,
    evaluator: Evaluator,
    plan: ScenePlan,
    strips: range,
    products: Products,
    pace: Pace,
    on_tile: Callable[[], None] = lambda: None,
) -> Generator[Band]:
    """The bands of `strips`, in order.

    A stream that begins in the middle first goes again through the strips that overlap its first one, so the bytes
    are those of a stream that began at the top.
    """
    from_strip = plan.rows.first_touching(strips.start)
    places = [(i, j) for i in range(from_strip, strips.stop) for j in range(len(plan.cols.starts))]
    blender = Blender(plan, strips.start, evaluator.model.num_classes, evaluator.device, products)
    device = evaluator.device
    tiles = _read_ahead(source, plan, places, pace.readers(device), tiles_ahead(plan, evaluator.model, pace, device))
    # closed here and not whenever the garbage is collected: threads must not outlive the source
    with (
        source.reading(plan.rows.tile),
        contextlib.closing(tiles),
        contextlib.closing(scored(evaluator, tiles, pace.batch_size, plan.tiles)) as results,
        contextlib.closing(_finished(_blended(results, blender, strips, on_tile), device)) as bands,
    ):
        for band in bands:
            yield band
            memory.give_back()


def _blended(
    results: Iterator[Scored], blender: Blender, strips: range, on_tile: Callable[[], None]
) -> Generator[OpenBand]:
    for (strip, column, pixels), scores in results:
        band = blender.add(strip, column, scores, pixels.present)
        if strip >= strips.start:
            on_tile()
        if band is not None:
            yield band


def _finished(bands: Iterator[OpenBand], device: torch.device) -> Generator[Band]:
    """On a GPU each band is waited for by a thread while the next one is begun, so that the GPU never waits."""
    if device.type == "cpu":
        yield from (band.finish() for band in bands)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="crisp-finish") as pool:
        before: Future[Band] | None = None
        for band in bands:
            now = pool.submit(band.finish)
            if before is not None:
                yield before.result()
            before = now
        if before is not None:
            yield before.result()


def _read_ahead(
    source: Source, plan: ScenePlan, places: list[tuple[int, int]], workers: int, ahead: int
) -> Generator[Tile]:
    """Tiles in order, read by `workers` threads while earlier ones are evaluated."""
    waiting: collections.deque[tuple[int, int, Future[Pixels]]] = collections.deque()
    upcoming = iter(places)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="crisp-read")
    try:
        while True:
            while len(waiting) < ahead and (place := next(upcoming, None)) is not None:
                waiting.append((*place, pool.submit(read_reflected, source, _window(plan, *place))))
            if not waiting:
                return
            strip, column, pixels = waiting.popleft()
            yield Tile(strip, column, pixels.result())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def tiles_ahead(plan: ScenePlan, model: SegmentationModel, pace: Pace, device: torch.device) -> int:
    """How many tiles are read before the model needs them."""
    tile_bytes = 4 * model.in_channels * plan.rows.tile * plan.cols.tile
    most_bytes = _BYTES_AHEAD.get(device.type, _BYTES_AHEAD["cpu"])
    return max(pace.readers(device) + 1, min(_MOST_AHEAD, most_bytes // tile_bytes))


def _window(plan: ScenePlan, strip: int, column: int) -> Window:
    return Window(plan.rows.starts[strip], plan.cols.starts[column], plan.rows.tile, plan.cols.tile)
