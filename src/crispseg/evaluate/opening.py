"""What the words on the command line name: a model's folder or a training run's, and a data folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from crispseg import config as configs
from crispseg.data.folder import Folder, open_folder
from crispseg.models.base import SegmentationModel
from crispseg.models.folder import load
from crispseg.models.shipped import RUN_CONFIG, find_folder, run_of
from crispseg.reading import read_json
from crispseg.train.run_folder import recorded_split

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
            given: Any = configs.read_yaml(run / RUN_CONFIG).get("data", {})
            data: _RunData = configs.checked(_RunData, given, f"{run / RUN_CONFIG}: data")
            if Path(data.get("path", "")).resolve() == Path(path).resolve():
                protocol, classes, split_file = data.get("protocol"), data.get("classes"), data.get("split")
                recorded = recorded_split(run) if protocol is None and split_file is None else None
                if recorded is not None:
                    return open_folder(path, classes=classes, split=recorded, unlisted="unused")
                break
    return open_folder(path, protocol=protocol, classes=classes, split=split_file)


def report_label(dataset: str, opened: list[Opened]) -> str:
    """DATA-MODEL, or DATA-A-B; a run that is named after its data does not name it again."""
    labels = [each.label.removeprefix(f"{dataset}-") for each in opened]
    return "-".join([dataset, *labels])


def training_notes(opened: Opened, folder: Folder, split: str | None) -> list[str]:
    """What a reader has to know about the images the model was trained on."""
    protocol, trained = folder.protocol, opened.model.info.training_data
    if f"#{protocol.hash}," in trained:
        return []
    if opened.run is not None and (opened.run / _RUN_PROTOCOL).is_file():
        path = opened.run / _RUN_PROTOCOL
        run: _RunProtocol = configs.checked(_RunProtocol, read_json(path), str(path))
        names = [record.name for record in folder.records(split or protocol.scored_split)]
        seen = [n for n in names if any(n == tile or n.startswith(f"{tile}_") for tile in run.get("train", ()))]
        if seen and run.get("dataset") == protocol.dataset:
            return [f"{len(seen)} of the {len(names)} images were in this model's training split, e.g. {seen[0]}."]
    return [f"The model was trained on {trained}."] if trained else []
