"""What a scene will take, before it is begun: tiles, memory and time."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crispseg import exact, memory
from crispseg.errors import UserError
from crispseg.geo.scenes import Scene, open_scene
from crispseg.models.base import SegmentationModel
from crispseg.models.device import find_device
from crispseg.predict.bands import tiles_ahead
from crispseg.predict.evaluate import Evaluator
from crispseg.predict.plan import ScenePlan, make_plan
from crispseg.predict.scene import Request
from crispseg.raster.source import Window, read_reflected

_PLENTY = 8 << 30  # bytes; with so much free nothing is tried beforehand
_SMALL = 512  # side of the tile that tells what a larger one needs


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Bytes and seconds are estimates: the time is that of one tile from the middle of the scene, times the tiles."""

    scene: str
    height: int
    width: int
    tile: tuple[int, int]
    tiles: int
    buffers: int  # bytes held beside the model, whatever the scene's height
    evaluation: int  # bytes one tile takes in the model; 0 if unknown
    seconds: float


def estimate_scene(path: str, model: SegmentationModel, request: Request) -> tuple[Scene, Estimate]:
    """What the scene takes in tiles; the scene is closed again."""
    scene = open_scene(path, model, request.reading)
    try:
        settings = request.settings.settled(model)
        plan = make_plan(scene.grid.height, scene.grid.width, settings.tile, settings.overlap)
        evaluator = Evaluator(model, find_device(settings.device), settings.tta, settings.precision)
        seconds, evaluation = _one_tile(scene, plan, evaluator)
        side_by_side = request.pace.batch_size or torch.get_num_threads()
        if evaluator.device.type == "cpu":
            seconds /= min(side_by_side, torch.get_num_threads())
        return scene, Estimate(
            path,
            scene.grid.height,
            scene.grid.width,
            (plan.rows.tile, plan.cols.tile),
            plan.tiles,
            buffer_bytes(plan, model, request),
            evaluation,
            seconds * plan.tiles,
        )
    finally:
        scene.source.close()


def estimate_exact(path: str, model: SegmentationModel, request: Request) -> tuple[Scene, exact.Estimate]:
    """What the scene takes when it is run as one image; the scene is closed again."""
    scene = open_scene(path, model, request.reading)
    scene.source.close()
    model.to(find_device(request.settings.device)).eval()
    return scene, exact.estimate(model, scene.grid.height, scene.grid.width)


def buffer_bytes(plan: ScenePlan, model: SegmentationModel, request: Request) -> int:
    """Sums carried to the next strip, open columns, tiles read ahead, and finished bands on their way to the disk."""
    pixels = plan.rows.tile * plan.cols.tile
    device = find_device(request.settings.device)
    planes = 1 + request.products.confidence + model.num_classes * request.products.probabilities
    finished_rows = max(b - a for a, b in map(plan.rows.finished, range(plan.strips)))
    return (
        4 * model.num_classes * plan.carried_rows * plan.cols.length
        + 5 * 4 * model.num_classes * pixels
        + 4 * model.in_channels * pixels * tiles_ahead(plan, model, request.pace, device)
        + 4 * planes * finished_rows * plan.cols.length
    )


def check_memory(plan: ScenePlan, model: SegmentationModel, request: Request) -> None:
    """Refuse, before anything is begun, what would not fit below the memory that is free or allowed here.

    Where memory is short, a small tile is evaluated and its need taken in proportion. A GPU is not looked at.
    """
    device, free = find_device(request.settings.device), memory.free()
    if device.type != "cpu" or request.settings.exact or free > _PLENTY:
        return
    evaluator = Evaluator(model, device, request.settings.tta, request.settings.precision)
    side = min(_SMALL, plan.rows.tile, plan.cols.tile)
    evaluator([np.zeros((model.in_channels, 64, 64), np.float32)])  # the first call takes what every later one has
    _, small = _timed(evaluator, np.zeros((model.in_channels, side, side), np.float32))
    needed = {
        tile: buffer_bytes(plan, model, request) * tile // plan.rows.tile + small * tile * tile // side**2
        for tile in (plan.rows.tile, *(t for t in (2048, 1024, 512, 256, 128) if t < plan.rows.tile))
    }
    if needed[plan.rows.tile] <= free:
        return
    fitting = next((tile for tile, bytes_ in needed.items() if bytes_ <= free), None)
    advice = "" if fitting is None else f"lower --tile to {fitting}, "
    raise UserError(
        f"tiles of {plan.cols.tile} x {plan.rows.tile} px over a width of {plan.cols.length} px need about "
        f"{needed[plan.rows.tile] / 2**20:.0f} MiB and {free / 2**20:.0f} are free or allowed; {advice}"
        "leave out --probabilities, or allow more memory"
    )


def _one_tile(scene: Scene, plan: ScenePlan, evaluator: Evaluator) -> tuple[float, int]:
    """Seconds and bytes of the middle tile."""
    strip, column = plan.strips // 2, len(plan.cols.starts) // 2
    window = Window(plan.rows.starts[strip], plan.cols.starts[column], plan.rows.tile, plan.cols.tile)
    tile = read_reflected(scene.source, window).values
    return _timed(evaluator, tile)


def _timed(evaluator: Evaluator, tile: NDArray[Any]) -> tuple[float, int]:
    """Seconds and bytes of a tile on one thread, as tiles are evaluated; the first run only warms up."""
    threads = torch.get_num_threads()
    if evaluator.device.type == "cpu":
        torch.set_num_threads(1)
    try:
        memory.give_back()  # what an earlier tile left would seem to cost nothing
        before = memory.resident()
        memory.reset_peak()
        evaluator([tile])
        needed = max(0, memory.peak() - before)
        start = time.perf_counter()
        evaluator([tile]).cpu()
        return time.perf_counter() - start, needed
    finally:
        torch.set_num_threads(threads)
