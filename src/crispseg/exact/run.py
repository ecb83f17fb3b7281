"""The whole run: plan, backbone, head, result."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from crispseg.errors import UserError, unknown
from crispseg.exact.context import Context, Progress
from crispseg.exact.parts import ReadRows, StreamedModel
from crispseg.exact.plan import MEMORY_LIMIT, StreamPlan, make_plan
from crispseg.exact.store import Folder, Storage
from crispseg.layout import to_channels_first

WriteRows = Callable[[int, Tensor], None]
PRECISIONS = ("float32", "float16")
_SAMPLE_SIDE = {"cpu": 512, "other": 2048}  # of the image that the time estimate is measured on, by device


@dataclasses.dataclass(frozen=True)
class Estimate:
    memory_bytes: int  # beyond the model: maps kept in memory, the band at work and what the allocator holds back
    disk_bytes: int  # temporary files at their largest
    traffic_bytes: int  # read from and written to them in all
    seconds: float  # of computing, from a small image measured just now; a slow disk adds to it


def segment_stream(
    model: nn.Module,
    read_rows: ReadRows,
    height: int,
    width: int,
    write_rows: WriteRows,
    *,
    band: int | None = None,
    spill: Folder = None,
    spill_precision: str = "float32",
    memory_limit: int = MEMORY_LIMIT,
    progress: Progress | None = None,
) -> None:
    """Run a model on a scene as one image, holding only bands of it in memory.

    The result is that of `model(image)` on the whole array, to rounding. The model's parts must say how they run in
    bands (`streamed`), as those of CRISP and UPerNet do. It must be in evaluation mode; it runs on the device it is on.

    read_rows(top, bottom): gives the scene's rows, normalised, as (bands, bottom - top, width); called once for each
        band, from top to bottom.
    write_rows(top, logits): takes the result's rows (classes, rows, width), from top to bottom, on the model's device.
    band: rows of each feature map to work on at a time; None chooses by `memory_limit`.
    spill: folder for the feature maps that do not fit into memory; None is the system's folder for temporary files.
    spill_precision: what the maps are kept in between passes; "float16" halves the disk space and is no longer exact.
    memory_limit: bytes of memory to aim at, beyond the model. Three eighths go to maps, as much to the band at work.
    progress: called with the fraction of the work that is done.
    """
    parts, like = _parts(model), next(model.parameters())
    kept = _kept(like.dtype, spill_precision)
    plan = make_plan(parts, like, height, width, band=band, memory_limit=memory_limit, kept=kept)
    _check_disk(plan, spill)

    def checked(top: int, bottom: int) -> Tensor:
        rows, wanted = read_rows(top, bottom), (parts.backbone.in_channels, bottom - top, width)
        if tuple(rows.shape) != wanted:
            raise ValueError(f"read_rows({top}, {bottom}) gave the shape {tuple(rows.shape)}, not {wanted}")
        if not rows.isfinite().all():
            # every pixel reaches every other: one such value would blank the whole scene
            raise UserError(f"the scene has values that are not finite in rows {top} to {bottom - 1}; fill them first")
        return rows

    with torch.no_grad(), Storage(kept, spill) as storage:
        run = Context(plan, storage, like, progress)
        top = 0
        for (rows,) in parts.head.run(run, parts.backbone.run(run, checked)):
            write_rows(top, to_channels_first(rows)[0])
            top += rows.shape[1]


def logits(model: nn.Module, image: Tensor, **options: object) -> Tensor:
    """`segment_stream` on an image (bands, H, W) in memory: logits (classes, H, W)."""
    parts: list[Tensor] = []
    height, width = image.shape[-2:]
    segment_stream(
        model,
        lambda top, bottom: image[:, top:bottom],
        height,
        width,
        lambda _, rows: parts.append(rows),
        **options,  # type: ignore[arg-type]
    )
    return torch.cat(parts, dim=1)


def estimate(
    model: nn.Module,
    height: int,
    width: int,
    *,
    band: int | None = None,
    spill_precision: str = "float32",
    memory_limit: int = MEMORY_LIMIT,
) -> Estimate:
    """What `segment_stream` would take for a scene of this size; it runs the model on a small image to find out."""
    parts, like = _parts(model), next(model.parameters())
    kept = _kept(like.dtype, spill_precision)
    plan = make_plan(parts, like, height, width, band=band, memory_limit=memory_limit, kept=kept)
    side = _SAMPLE_SIDE["cpu" if like.device.type == "cpu" else "other"]
    sample = torch.zeros(parts.backbone.in_channels, side, side)
    logits(model, sample[:, :64, :64])  # the first call of a kernel is slow
    start = time.perf_counter()
    logits(model, sample).sum().item()  # fetching a number waits for the device
    seconds = time.perf_counter() - start
    measured = make_plan(parts, like, side, side, band=None, memory_limit=memory_limit, kept=kept)
    return Estimate(
        memory_bytes=(plan.map_bytes + plan.band_bytes) * 4 // 3,
        disk_bytes=plan.disk_bytes,
        traffic_bytes=plan.traffic_bytes,
        seconds=seconds * plan.macs / measured.macs,
    )


def _parts(model: nn.Module) -> StreamedModel:
    """What its backbone and its head say about running in bands."""
    found = {name: getattr(getattr(model, name, None), "streamed", None) for name in ("backbone", "head")}
    silent = [name for name, streamed in found.items() if streamed is None]
    if silent:
        name = getattr(model, "name", "") or type(model).__name__
        raise UserError(
            f"model {name!r} cannot run a scene as one image, as its {' and '.join(silent)} cannot run in bands "
            "(those of CRISP and of UPerNet on VSSD can, but not once they are ONNX files); use tiles"
        )
    if model.training:
        raise UserError("a scene is run as one image in evaluation mode only; call model.eval() first")
    return StreamedModel(**{name: streamed() for name, streamed in found.items() if streamed is not None})


def _kept(dtype: torch.dtype, spill_precision: str) -> torch.dtype:
    if spill_precision not in PRECISIONS:
        raise unknown("precision", spill_precision, PRECISIONS)
    return torch.float16 if spill_precision == "float16" else dtype


def _check_disk(plan: StreamPlan, folder: Folder) -> None:
    if not plan.disk_bytes:
        return
    place = Path(folder or tempfile.gettempdir())
    try:
        free = shutil.disk_usage(place).free
    except OSError as error:
        raise UserError(f"cannot keep features in {place}: {error.strerror}; choose another folder") from error
    if free < plan.disk_bytes:
        raise UserError(
            f"this scene needs {plan.disk_bytes / 1e9:.1f} GB of temporary files and {place} has {free / 1e9:.1f} GB "
            "free; choose another folder, allow more memory, or keep the features in float16"
        )
