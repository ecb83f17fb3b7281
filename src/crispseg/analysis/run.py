"""Runs the variants of a model over some images of a split and gathers what the figures are made from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crispseg.analysis.gates import calibrated_mixers, gates_off, learned_gates, learned_temperatures
from crispseg.analysis.mistakes import Mistakes, boundary_band
from crispseg.analysis.mixing import Liveliness, at_its_mean, mixers
from crispseg.analysis.prototypes import Matching, PrototypeSums, allocation, has_prototypes, match_prototypes
from crispseg.analysis.result import (
    AGAINST,
    AS_TRAINED,
    AT_MEAN,
    GATES_OFF,
    Analysis,
    Conditions,
    Look,
    Settings,
    Spectrum,
    Variant,
)
from crispseg.analysis.watching import activity, caught, places, ratios
from crispseg.data.classes import IGNORE
from crispseg.data.drawing import to_rgb
from crispseg.data.folder import Folder, Record
from crispseg.data.protocol import Labels
from crispseg.errors import UserError, unknown
from crispseg.evaluate.conditions import require_labels
from crispseg.evaluate.run import check_fit
from crispseg.evaluate.spectrum import spread
from crispseg.evaluate.values import check_values
from crispseg.models.base import SegmentationModel
from crispseg.models.crisp import CRISP
from crispseg.models.device import find_device
from crispseg.models.onnx_file import OnnxModel
from crispseg.predict.evaluate import Evaluator
from crispseg.raster.source import ArraySource, Window, read_reflected


def analyze(
    model: SegmentationModel,
    folder: Folder,
    split: str | None = None,
    *,
    against: SegmentationModel | None = None,
    settings: Settings | None = None,
    device: str | None = None,
    source: str = "",
    against_source: str = "",
    notes: Iterable[str] = (),
    on_image: Callable[[int, int], None] = lambda done, images: None,
) -> Analysis:
    """The paper's figures of `model` on a split of `folder` (default: the one its protocol is scored on).

    `source`, `against_source` and `notes` are for the report; `on_image` is told how many images are done.
    """
    settings = settings or Settings()
    check_settings(settings, folder)
    models = {AS_TRAINED: model} | ({AGAINST: against} if against is not None else {})
    for each in models.values():
        check_fit(each, folder)
    records, conditions = choose(folder, split, settings)
    for each in models.values():
        check_values(each, folder, records)
    was_training = {label: each.training for label, each in models.items()}
    try:
        runners = _runners(models, find_device(device), source or model.name, against_source)
        sums = PrototypeSums()
        drawn = spread(len(records), settings.pictures)
        looks = []
        for index, record in enumerate(records):
            shown = read(folder, record, conditions, model)
            look = _look(shown, runners, sums, settings, conditions)
            if index in drawn:
                looks.append(look)
            on_image(index + 1, len(records))
    finally:
        for label, each in models.items():
            each.train(was_training[label])
    return Analysis(
        model=model.name,
        source=source or model.name,
        conditions=conditions,
        names=tuple(record.name for record in records),
        variants={label: runner.finish() for label, runner in runners.items()},
        liveliness={label: ratios for label in models if (ratios := runners[label].liveliness.mean())},
        gates={label: gates for label, each in models.items() if (gates := learned_gates(each))},
        temperatures={label: found for label, each in models.items() if (found := learned_temperatures(each))},
        prototypes=sums.finish() if has_prototypes(model) else None,
        looks=tuple(looks),
        notes=(*notes, *_own_notes(models, conditions)),
    )


def check_settings(settings: Settings, folder: Folder) -> None:
    if settings.images < 0 or settings.pictures < 0:
        raise UserError(f"cannot look at {settings.images} images and draw {settings.pictures}; give 0 or more")
    if settings.limit < 32:
        raise UserError(f"the middle window must be at least 32 px, not {settings.limit}")
    if settings.band < 1:
        raise UserError(f"the band around boundaries must be at least 1 px wide, not {settings.band:g}")
    if settings.focus is not None and settings.focus not in folder.protocol.classes:
        raise unknown("class", settings.focus, folder.protocol.classes)


def choose(folder: Folder, split: str | None, settings: Settings) -> tuple[list[Record], Conditions]:
    """The images to look at, and what is said about them."""
    protocol = folder.protocol
    split = split or protocol.scored_split
    everything = folder.records(split)
    records = [everything[i] for i in sorted(spread(len(everything), settings.images or len(everything)))]
    labels: Labels = protocol.boundary_labels
    if any(labels not in record.masks for record in records):
        labels = protocol.labels(split)
    require_labels(folder, split, records, labels, "find errors with")
    cut = sum(max(record.height, record.width) > settings.limit for record in records)
    return records, Conditions(protocol, split, len(records), len(everything), cut, labels, settings)


class Shown(NamedTuple):
    """The part of an image that is looked at."""

    name: str
    window: Window
    rgb: NDArray[np.uint8]  # (H, W, 3)
    image: NDArray[Any]  # the whole of it (height, width, bands), with its gaps
    measured: NDArray[np.bool_] | None  # (height, width, bands) where it has data
    present: NDArray[np.bool_]
    truth: NDArray[np.uint8]  # ignored where nothing is present


def read(folder: Folder, record: Record, conditions: Conditions, model: SegmentationModel) -> Shown:
    (image, measured, _), truth = folder.read_pair(record, conditions.labels)
    if image.shape[:2] != truth.shape:
        raise UserError(
            f"{record.image} is {image.shape[1]} x {image.shape[0]} px, but its labels are {truth.shape[1]} x "
            f"{truth.shape[0]} px"
        )
    height, width = (min(side, conditions.settings.limit) for side in truth.shape)
    window = Window((truth.shape[0] - height) // 2, (truth.shape[1] - width) // 2, height, width)
    rows, columns = slice(window.top, window.top + height), slice(window.left, window.left + width)
    present = ArraySource(image, model.info.mean, measured).read(window).present
    truth = np.where(present, truth[rows, columns], np.uint8(IGNORE))
    return Shown(record.name, window, to_rgb(image[rows, columns]), image, measured, present, truth)


class Seen(NamedTuple):
    """What one variant made of one image."""

    predicted: Tensor  # (H, W)
    matching: Matching | None
    activity: dict[str, NDArray[np.float32]]


class _Runner:
    """One variant, image after image."""

    def __init__(self, label: str, source: str, model: SegmentationModel, device: torch.device) -> None:
        self.label, self.source = label, source
        self.evaluator = Evaluator(model, device, fused=False)  # normalises, and checks the model's card
        self.mistakes = Mistakes.none(model.num_classes)
        self.rows: dict[str, list[dict[str, float]]] = {"mixer": [], "block": []}
        self.liveliness = Liveliness()

    @torch.inference_mode()
    def __call__(self, shown: Shown, cutoff: float) -> Seen:
        evaluator, model = self.evaluator, self.evaluator.model
        source = ArraySource(shown.image, model.info.mean, shown.measured)
        values = read_reflected(source, shown.window).values
        x = torch.from_numpy(values).to(evaluator.device, torch.float32)
        x = (x if model.normalises else evaluator.normalisation(x))[None]
        matching = None
        with self._as_variant(), caught(places(model, "mixer")) as mixers, caught(places(model, "block")) as blocks:
            if self.label == AS_TRAINED and has_prototypes(model):
                matching = match_prototypes(cast(CRISP, model), x)
                logits = matching.logits
            else:
                logits = model(x)
        self.rows["mixer"].append(ratios(mixers, cutoff))
        self.rows["block"].append(ratios(blocks, cutoff))
        last = {name.partition(" block")[0]: name for name in mixers}  # of each stage
        maps = {name: activity(mixers[name]).cpu().numpy() for name in last.values()}
        return Seen(logits[0].argmax(0).to(torch.uint8), matching, maps)

    def _as_variant(self) -> contextlib.AbstractContextManager[None]:
        model = self.evaluator.model
        changed = {GATES_OFF: gates_off, AT_MEAN: at_its_mean}
        return changed.get(self.label, self.liveliness.watching)(model)

    def finish(self) -> Variant:
        return Variant(self.label, self.source, self.mistakes, self._spectrum())

    def _spectrum(self) -> Spectrum | None:
        if not self.rows["mixer"][0]:
            return None
        return Spectrum(
            **{place: {b: np.array([row[b] for row in rows]) for b in rows[0]} for place, rows in self.rows.items()}
        )


def _runners(
    models: dict[str, SegmentationModel], device: torch.device, source: str, against_source: str
) -> dict[str, _Runner]:
    model = models[AS_TRAINED]
    runners = {AS_TRAINED: _Runner(AS_TRAINED, source, model, device)}
    if calibrated_mixers(model):
        runners[GATES_OFF] = _Runner(GATES_OFF, source, model, device)
    if mixers(model):
        runners[AT_MEAN] = _Runner(AT_MEAN, source, model, device)
    if AGAINST in models:
        other = models[AGAINST]
        runners[AGAINST] = _Runner(AGAINST, against_source or other.name, other, device)
    return runners


def _look(
    shown: Shown, runners: dict[str, _Runner], sums: PrototypeSums, settings: Settings, conditions: Conditions
) -> Look:
    """Show an image to every variant and add it to their sums."""
    seen = {label: runner(shown, settings.cutoff) for label, runner in runners.items()}
    device = runners[AS_TRAINED].evaluator.device
    truth = torch.from_numpy(shown.truth).to(device)
    band = boundary_band(truth, len(conditions.protocol.classes), settings.band)
    for label, runner in runners.items():
        runner.mistakes.count(seen[label].predicted, truth, band)
    predicted, matching, _ = seen[AS_TRAINED]
    won = None
    if matching is not None:
        won = allocation(matching.cosines, predicted)
        sums.add(matching, predicted, won, torch.from_numpy(shown.present).to(device))
    return Look(
        name=shown.name,
        window=(shown.window.top, shown.window.left),
        image=shown.rgb,
        truth=shown.truth,
        band=band.cpu().numpy(),
        predictions={label: each.predicted.cpu().numpy() for label, each in seen.items()},
        activity={label: each.activity for label, each in seen.items() if each.activity},
        won=None if won is None else won.to(torch.uint8).cpu().numpy(),
        cosines=None if matching is None else matching.cosines.cpu().numpy(),
    )


def _own_notes(models: dict[str, SegmentationModel], conditions: Conditions) -> Iterator[str]:
    for model in models.values():
        if isinstance(model, OnnxModel):
            yield f"{model.where} is an exported file: its blocks and prototypes cannot be looked into."
        elif not places(model, "mixer"):
            yield f"{model.name} has no VSSD backbone: it has no spectral ratios and no gates."
        elif not calibrated_mixers(model):
            yield f"{model.name} was made without DCO: it has no gates to show or to switch off."
    if not has_prototypes(models[AS_TRAINED]) and not isinstance(models[AS_TRAINED], OnnxModel):
        yield f"{models[AS_TRAINED].name} has no prototypes: allocation and activation maps are left out."
    protocol = conditions.protocol
    if conditions.labels != protocol.boundary_labels:
        yield f"The data has no {protocol.boundary_labels} labels: along boundaries little is left to judge."
    if conditions.split == "train":
        yield "These are training images: the errors say nothing about new ones."
