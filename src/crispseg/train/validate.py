"""Scores on the validation split while training: the map of every image that `crisp predict` would make of it, cut into
windows and blended by the same code, and scored as `crisp eval` does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crispseg.data.dataset import SegmentationDataset
from crispseg.data.loader import evaluation_loader
from crispseg.metrics import BoundaryCounts, ConfusionMatrix, TemperatureFit
from crispseg.predict.blend import Blender
from crispseg.predict.evaluate import whole_numbers_
from crispseg.predict.plan import ScenePlan, plan_windows
from crispseg.raster.products import Products
from crispseg.raster.source import reflected
from crispseg.train.distributed import Processes

Network = Callable[[Tensor], Tensor]  # raw images (B, bands, h, w) -> logits (B, classes, h, w)


@dataclasses.dataclass(frozen=True)
class Shown:
    """An image to draw: its name, raw pixels (H, W, bands), truth and prediction (H, W)."""

    name: str
    image: NDArray[Any]
    truth: NDArray[np.uint8]
    prediction: NDArray[np.uint8]


@dataclasses.dataclass(frozen=True)
class Validation:
    scores: dict[str, Any]  # mIoU, mF1, OA, IoU and F1 per class, and BF@3px if asked for
    shown: list[Shown]
    temperature: float  # that fits these images best


def validate(
    network: Network,
    dataset: SegmentationDataset,
    processes: Processes,
    *,
    batch: int,
    images: int | None = None,
    samples: int = 0,
    boundaries: bool = False,
    workers: int = 0,
) -> Validation:
    """Every process scores its part of the images; all get the scores over all of them."""
    protocol = dataset.folder.protocol
    classes = len(protocol.classes)
    matrix, edges = ConfusionMatrix(classes), BoundaryCounts(classes)
    shown: list[Shown] = []
    fit = TemperatureFit()
    loader = evaluation_loader(dataset, rank=processes.rank, world=processes.count, workers=workers)
    for number, (image, truth, (name,)) in enumerate(loader):
        index = number * processes.count + processes.rank
        if images is not None and index >= images:
            break

        def note(logits: Tensor, top: int, left: int, truth: Tensor = truth) -> None:
            fit.update(logits, truth[0, top : top + logits.shape[1], left : left + logits.shape[2]])

        prediction = predict(network, image[0], protocol.tile, protocol.overlap, classes, batch, processes.device, note)
        matrix.update(prediction, truth[0])
        if boundaries:
            record = dataset.records[index]
            edges.update(prediction, torch.from_numpy(dataset.folder.read_mask(record, protocol.boundary_labels)))
        if len(shown) < samples:
            pixels = image[0].movedim(0, -1).numpy().astype(dataset.folder.dtype)
            shown.append(Shown(name, pixels, truth[0].byte().numpy(), prediction.byte().numpy()))
    names = protocol.classes
    scores = matrix.all_reduce_().scores(protocol.scored_ids).to_dict(names)
    if boundaries:
        scores |= {k: v for k, v in edges.all_reduce_().scores(protocol.scored_ids).to_dict(names).items() if "@" in k}
    return Validation(scores, shown, fit.all_reduce_().best())


@torch.inference_mode()
def predict(
    network: Network,
    image: Tensor,
    tile: int,
    overlap: int,
    classes: int,
    batch: int,
    device: torch.device,
    note: Callable[[Tensor, int, int], None] = lambda logits, top, left: None,
) -> Tensor:
    """Class ids (H, W) on the CPU of a raw image (bands, H, W); `tile` 0 is the whole image at once.

    `note` is shown the logits (classes, h, w) of every window, as far as it lies in the image, and where it lies.
    """
    image = image.to(device)
    height, width = image.shape[-2:]
    plan = plan_windows(height, width, tile, overlap)
    blender = Blender(plan, 0, classes, device, Products())
    places = [(strip, column) for strip in range(plan.strips) for column in range(len(plan.cols.starts))]
    present = np.ones((plan.rows.tile, plan.cols.tile), bool)
    found = np.empty((height, width), np.uint8)
    for group in _groups(places, batch):
        windows = torch.stack([_window(image, plan, *place) for place in group])
        logits = network(windows).float()
        for (strip, column), own in zip(group, logits, strict=True):
            note(*_inside(own, plan, strip, column))
            band = blender.add(strip, column, whole_numbers_(own.softmax(0)), present)
            if band is not None:
                rows = band.finish().classes
                found[band.top : band.top + len(rows)] = rows
    return torch.from_numpy(found).long()


def _window(image: Tensor, plan: ScenePlan, strip: int, column: int) -> Tensor:
    """A window of the plan; beyond the image, its reflection."""
    rows = reflected(plan.rows.starts[strip], plan.rows.tile, plan.rows.length)
    columns = reflected(plan.cols.starts[column], plan.cols.tile, plan.cols.length)
    return image[:, torch.from_numpy(rows).to(image.device)[:, None], torch.from_numpy(columns).to(image.device)]


def _inside(logits: Tensor, plan: ScenePlan, strip: int, column: int) -> tuple[Tensor, int, int]:
    """The part of a window's logits that lies in the image, and its top and left there."""
    top, left = plan.rows.starts[strip], plan.cols.starts[column]
    rows = slice(max(-top, 0), plan.rows.length - top)
    columns = slice(max(-left, 0), plan.cols.length - left)
    return logits[:, rows, columns], max(top, 0), max(left, 0)


def _groups(items: list[tuple[int, int]], size: int) -> Iterator[list[tuple[int, int]]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def flat_scores(scores: dict[str, Any], prefix: str) -> dict[str, float | None]:
    """mIoU and the rest as val/mIoU, and per class as val/IoU/road."""
    flat: dict[str, float | None] = {}
    for name, value in scores.items():
        if isinstance(value, dict):
            if name in ("IoU", "F1"):
                flat |= {f"{prefix}{name}/{cls}": number for cls, number in value.items()}
        elif not isinstance(value, list):
            flat[f"{prefix}{name}"] = value
    return flat
