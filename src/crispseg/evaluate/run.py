"""Runs a model over a split, image by image, and counts. Images are shared out to the processes of a torchrun."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crispseg.data.bands import named_bands
from crispseg.data.classes import IGNORE
from crispseg.data.dataset import check_bands
from crispseg.data.folder import Folder
from crispseg.data.protocol import Protocol
from crispseg.errors import UserError
from crispseg.evaluate.conditions import Conditions, Settings, settle
from crispseg.evaluate.kept import KeptMap
from crispseg.evaluate.result import Evaluation, ImageCounts
from crispseg.evaluate.scales import AtScales
from crispseg.evaluate.spectrum import spectral_ratios, spread
from crispseg.evaluate.values import check_values
from crispseg.evaluate.worst import WorstWindows, worst_of
from crispseg.metrics import BoundaryCounts, CalibrationCounts, ConfusionMatrix
from crispseg.models.base import SegmentationModel
from crispseg.models.device import find_device
from crispseg.predict.bands import Pace, finished_bands
from crispseg.predict.evaluate import Evaluator
from crispseg.predict.plan import ScenePlan, plan_windows
from crispseg.raster.products import NODATA, SURE, Products
from crispseg.raster.source import ArraySource
from crispseg.train.distributed import Processes

_BATCH_PIXELS = 1 << 22  # windows of this many pixels together keep an accelerator busy
_CHUNK = 1 << 22  # pixels whose confidence is counted at a time
Labels = NDArray[np.uint8]  # (H, W)


class Progress:
    """Is told how an evaluation comes along; the command draws its bar with it."""

    def begin(self, windows: int) -> None:
        """So many windows will be evaluated by this process."""

    def window_done(self) -> None:
        """One of them is."""


def evaluate(
    model: SegmentationModel,
    folder: Folder,
    split: str | None = None,
    *,
    settings: Settings | None = None,
    device: str | None = None,
    processes: Processes | None = None,
    source: str = "",
    notes: Iterable[str] = (),
    progress: Progress | None = None,
) -> Evaluation:
    """Score `model` on a split of `folder` (default: the one its protocol is scored on).

    With `processes`, each takes every n-th image and all get the result, which is that of one process. `source` and
    `notes` are for the report.
    """
    settings, progress = settings or Settings(), progress or Progress()
    processes = processes or Processes(find_device(device))
    conditions = settle(settings, folder, split)
    check_fit(model, folder)
    check_values(model, folder, folder.records(conditions.split))
    was_training = model.training
    try:
        judge = _Judge(model, folder, conditions, settings, processes, progress)
        images, worst = judge.run()
    finally:
        model.train(was_training)
    parts = processes.gather((images, worst))
    return Evaluation(
        model=model.name,
        source=source or model.name,
        conditions=conditions,
        images=tuple(sorted((image for part, _ in parts for image in part), key=lambda image: image.index)),
        worst=tuple(worst_of((window for _, part in parts for window in part), settings.worst)),
        notes=(*notes, *_own_notes(model, conditions, named_bands(folder))),
        folder=folder,
    )


def check_fit(model: SegmentationModel, folder: Folder) -> None:
    """Refuse a model whose bands or classes are not those of the data."""
    check_bands(folder, model.in_channels, f"the model {model.title}")
    protocol, names = folder.protocol, model.info.classes
    if model.num_classes != len(protocol.classes):
        raise UserError(
            f"the model {model.title} predicts {model.num_classes} classes ({', '.join(names) or 'not named'}), but "
            f"protocol {protocol.name} has {len(protocol.classes)} ({', '.join(protocol.classes)})"
        )
    if names != protocol.classes and sorted(names) == sorted(protocol.classes):
        raise UserError(
            f"the model {model.title} numbers its classes {', '.join(names)}, but protocol {protocol.name} "
            f"{', '.join(protocol.classes)}; reorder the class table of {folder.root}"
        )


def naming_notes(model: SegmentationModel, protocol: Protocol, bands: tuple[str, ...]) -> Iterator[str]:
    """That bands or classes of the data are not called as the model calls its own."""
    names = model.info.classes
    if bands and model.info.bands and bands != model.info.bands:
        yield f"The model was trained on {', '.join(model.info.bands)}, but the bands here are {', '.join(bands)}."
    if names and names != protocol.classes:
        yield f"The model calls its classes {', '.join(names)}, the data {', '.join(protocol.classes)}."


def _own_notes(model: SegmentationModel, conditions: Conditions, bands: tuple[str, ...]) -> Iterator[str]:
    protocol = conditions.protocol
    yield from naming_notes(model, protocol, bands)
    if conditions.split == "train":
        yield "These are training images: the scores say nothing about new ones."
    if conditions.boundary_labels is None:
        yield f"Boundaries are not scored: the data has no {protocol.boundary_labels} labels."


class _Loaded(NamedTuple):
    image: NDArray[Any]  # (H, W, bands)
    truth: Labels
    edge_truth: Labels | None  # the labels that boundaries are scored on
    measured: NDArray[np.bool_] | None  # (H, W, bands) where the image has data


class _Judge:
    """One process's part of an evaluation."""

    def __init__(
        self,
        model: SegmentationModel,
        folder: Folder,
        conditions: Conditions,
        settings: Settings,
        processes: Processes,
        progress: Progress,
    ) -> None:
        self.folder, self.conditions, self.progress = folder, conditions, progress
        self.records = folder.records(conditions.split)
        self.device = processes.device
        self.batch_size = settings.batch_size
        shown = model if conditions.scales == (1.0,) else AtScales(model, conditions.scales)
        self.evaluator = Evaluator(shown, self.device, conditions.tta, conditions.precision)
        self.plain = Evaluator(model, self.device, "none", conditions.precision, fused=False)
        self.mine = range(processes.rank, len(self.records), processes.count)
        self.looked_into = spread(len(self.records), settings.spectrum_images)
        self.worst = WorstWindows(settings.worst)

    def run(self) -> tuple[list[ImageCounts], list[Any]]:
        sizes = [(self.records[i].height, self.records[i].width) for i in self.mine]
        tile, overlap = self.conditions.tile, self.conditions.overlap
        self.progress.begin(sum(plan_windows(*size, tile, overlap).tiles for size in sizes))
        images = [self._count(i, loaded) for i, loaded in zip(self.mine, _ahead(self._load, self.mine), strict=True)]
        return images, self.worst.kept

    def _load(self, index: int) -> _Loaded:
        record, conditions = self.records[index], self.conditions
        (image, measured, _), truth = self.folder.read_pair(record, conditions.labels)
        edge_truth = truth
        if conditions.boundary_labels not in (None, conditions.labels):
            edge_truth = self.folder.read_mask(record, conditions.boundary_labels)
        if image.shape[:2] != truth.shape:
            raise UserError(
                f"{record.image} is {image.shape[1]} x {image.shape[0]} px, but its labels are {truth.shape[1]} x "
                f"{truth.shape[0]} px"
            )
        edges = None if conditions.boundary_labels is None else edge_truth
        return _Loaded(image, truth, edges, measured)

    def _count(self, index: int, loaded: _Loaded) -> ImageCounts:
        conditions, name = self.conditions, self.records[index].name
        image_source = ArraySource(loaded.image, self.plain.model.info.mean, loaded.measured)
        plan = plan_windows(image_source.height, image_source.width, conditions.tile, conditions.overlap)
        classes, confidence = predict(self.evaluator, image_source, plan, self.batch_size, self.progress.window_done)
        absent = classes == NODATA
        truth = np.where(absent, np.uint8(IGNORE), loaded.truth)
        self.worst.look(index, name, loaded.image, truth, classes)
        predicted, true = self._tensor(classes), self._tensor(truth)
        number = len(conditions.protocol.classes)
        boundary = None
        if loaded.edge_truth is not None:
            edges = np.where(absent, np.uint8(IGNORE), loaded.edge_truth)
            counts = BoundaryCounts(number, conditions.tolerance, conditions.tolerance)
            boundary = counts.update(predicted, self._tensor(edges))
        looked_into = index in self.looked_into
        return ImageCounts(
            index=index,
            name=name,
            confusion=ConfusionMatrix(number).update(predicted, true),
            calibration=calibrate(self._tensor(confidence), predicted == true, true != IGNORE),
            boundary=boundary,
            spectrum=spectral_ratios(self.plain, image_source, conditions.tile) if looked_into else {},
            prediction=KeptMap.of(classes),
        )

    def _tensor(self, array: Labels) -> Tensor:
        return torch.from_numpy(array).to(self.device)


def predict(
    evaluator: Evaluator, source: ArraySource, plan: ScenePlan, batch_size: int | None, on_window: Callable[[], None]
) -> tuple[Labels, Labels]:
    """Class ids and confidence (0 to SURE) of an image, both (H, W), 255 where it has no data."""
    classes, confidence = (np.empty((source.height, source.width), np.uint8) for _ in range(2))
    pace = Pace(_choose_batch(plan, evaluator.device) if batch_size is None else batch_size)
    for band in finished_bands(source, evaluator, plan, range(plan.strips), Products(True), pace, on_window):
        rows = slice(band.top, band.top + len(band.classes))
        assert band.confidence is not None  # it was asked for
        classes[rows], confidence[rows] = band.classes, band.confidence
    return classes, confidence


def _choose_batch(plan: ScenePlan, device: torch.device) -> int | None:
    """Even batches for an accelerator: it fills up the last, and trying out sizes for every image costs more.

    On a CPU the predict room looks at the memory.
    """
    if device.type == "cpu":
        return None
    most = max(1, _BATCH_PIXELS // (plan.rows.tile * plan.cols.tile))
    batches = -(-plan.tiles // most)
    return -(-plan.tiles // batches)


def calibrate(confidence: Tensor, right: Tensor, valid: Tensor) -> CalibrationCounts:
    """Calibration sums of one image from confidences (H, W) in steps of 1 / SURE."""
    counts = CalibrationCounts()
    flat = (part.reshape(-1).split(_CHUNK) for part in (confidence, right, valid))
    for values, hits, counted in zip(*flat, strict=True):
        counts.update_maps(values.float() / SURE, hits, counted)
    return counts


def _ahead(load: Callable[[int], _Loaded], indices: Iterable[int]) -> Iterator[_Loaded]:
    """Images in order; the next is read while one is evaluated."""
    with ThreadPoolExecutor(1, thread_name_prefix="crisp-image") as pool:
        waiting = None
        for index in indices:
            coming = pool.submit(load, index)
            if waiting is not None:
                yield waiting.result()
            waiting = coming
        if waiting is not None:
            yield waiting.result()
