"""What the words on the command line name: a model's folder or a training run's, and a data folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

from crispseg import config as configs
from crispseg.data.folder import Folder, Record, open_folder
from crispseg.models.base import SegmentationModel
from crispseg.models.folder import load
from crispseg.models.shipped import RUN_CONFIG, find_folder, run_of
from crispseg.reading import read_json
from crispseg.train.data_record import lie_in, trained_on
from crispseg.train.run_folder import recorded_split, under_its_name

_RUN_PROTOCOL = "protocol.json"


class _RunProtocol(TypedDict, total=False):
    """Of protocol.json, what is asked for here."""

    dataset: str
    train: list[str]


class _RunData(TypedDict, total=False):
    """Of config.yaml of a run, its data."""

    path: str
    protocol: str | None
    classes: str | None
    split: str | None


class Opened(NamedTuple):
    model: SegmentationModel
    source: str  # as the user wrote it
    run: Path | None  # the training run it came from, if that is at hand

    @property
    def label(self) -> str:
        """A name for files about this model: that of its run, of its folder, or of the shipped model."""
        return (Path(self.source) if self.run is None else self.run).resolve().name


def open_model(path: str | os.PathLike[str]) -> Opened:
    """What `load` opens, and the training run that it came from."""
    return Opened(load(path), os.fspath(path), run_of(find_folder(path)))


def open_data(
    path: str,
    opened: list[Opened],
    protocol: str | None = None,
    classes: str | None = None,
    split_file: str | None = None,
) -> Folder:
    """The data folder. Where nothing else is said, a model trained on it is scored on its own training's split."""
    if protocol is None and classes is None and split_file is None:
        for run in (each.run for each in opened if each.run is not None):
            data = _data_of(run)
            if _is_at(data, path) or lie_in(run, path):
                return _as_trained(run, data, path)
    return open_folder(path, protocol=protocol, classes=classes, split=split_file)


def _data_of(run: Path) -> _RunData:
    given: Any = configs.read_yaml(run / RUN_CONFIG).get("data", {})
    data: _RunData = configs.checked(_RunData, given, f"{run / RUN_CONFIG}: data")
    return data


def _is_at(data: _RunData, path: str | Path) -> bool:
    return Path(data.get("path", "")).resolve() == Path(path).resolve()


def _as_trained(run: Path, data: _RunData, path: str) -> Folder:
    """The data of a run as the run split it, wherever they are now."""
    protocol, classes, split_file = data.get("protocol"), data.get("classes"), data.get("split")
    recorded = recorded_split(run, path) if protocol is None and split_file is None else None
    unlisted: Literal["error", "unused"] = "error" if recorded is None else "unused"
    split = split_file if recorded is None else recorded
    folder = open_folder(path, protocol=protocol, classes=classes, split=split, unlisted=unlisted)
    folder.protocol = under_its_name(folder.protocol, run)
    return folder


def report_label(dataset: str, opened: list[Opened]) -> str:
    """DATA-MODEL, or DATA-A-B; a run that is named after its data does not name it again."""
    labels = [each.label.removeprefix(f"{dataset}-") for each in opened]
    return "-".join([dataset, *labels])


def training_notes(opened: Opened, folder: Folder, split: str | None) -> list[str]:
    """What a reader has to know about the images the model was trained on."""
    protocol, trained = folder.protocol, opened.model.info.training_data
    if f"#{protocol.hash}," in trained:
        return _moved(opened.run, folder)
    if opened.run is not None:
        records = folder.records(split or protocol.scored_split)
        seen = trained_on(opened.run, records) or _named_like_trained(opened.run, protocol.dataset, records)
        if seen:
            return [f"{len(seen)} of the {len(records)} images were in this model's training split, e.g. {seen[0]}."]
    return [f"The model was trained on {trained}."] if trained else []


def _moved(run: Path | None, folder: Folder) -> list[str]:
    """That the data of the training were found elsewhere than the run says."""
    data = _RunData() if run is None else _data_of(run)
    if run is None or _is_at(data, folder.root) or not lie_in(run, folder.root):
        return []
    return [f"These are the images of the model's training, then in {data.get('path')}; they are split as they were."]


def _named_like_trained(run: Path, dataset: str, records: Sequence[Record]) -> list[str]:
    """Those of the images that have names of the training split, if that was of a data set of this name."""
    path = run / _RUN_PROTOCOL
    said: _RunProtocol = configs.checked(_RunProtocol, read_json(path), str(path)) if path.is_file() else {}
    if said.get("dataset") != dataset:
        return []
    tiles = said.get("train", ())
    return [r.name for r in records if any(r.name == tile or r.name.startswith(f"{tile}_") for tile in tiles)]
