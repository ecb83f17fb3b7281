"""A run's folder: config.yaml, environment.json, protocol.json, metrics.jsonl, samples/, last.pt, best.pt, best/."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import platform
import shlex
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict

import torch

from crispseg import __version__
from crispseg import config as configs
from crispseg.data.drawing import paint, to_rgb
from crispseg.data.folder import PART
from crispseg.data.protocol import SPLITS, Protocol, list_protocols
from crispseg.errors import UserError
from crispseg.files import refuse_remote, replacing, write_json
from crispseg.outputs import LOCK, there
from crispseg.reading import read_json
from crispseg.train.checkpoint import BEST, LAST
from crispseg.train.config import TrainConfig, write_config
from crispseg.train.data_record import DATA
from crispseg.train.distributed import Processes
from crispseg.train.log import METRICS
from crispseg.train.validate import Shown

CONFIG, ENVIRONMENT, PROTOCOL, RESULT = "config.yaml", "environment.json", "protocol.json", "result.json"
_NOTES = (DATA, PROTOCOL, ENVIRONMENT)  # written before config.yaml
_NAMES = (*_NOTES, RESULT, METRICS, LAST, BEST, "best", "backbone", "samples")
_SCORES = ("mIoU", "mF1", "OA", "BF@3px")
_LONGEST_SIDE = 1024  # of a drawn image
_PACKAGES = ("torch", "numpy", "pillow", "safetensors", "scipy", "timm", "triton")


def new_run_folder(wanted: str | None, dataset: str, model: str, verb: str = "train") -> Path:
    """A folder for a new run: `wanted`, or the next runs/DATASET-MODEL-NUMBER that is free."""
    if wanted is not None:
        folder = Path(wanted)
        refuse_remote(folder)
        if (folder / CONFIG).exists():
            raise UserError(
                f"{folder} holds a run already; continue it with `crisp {verb} --resume {shlex.quote(str(folder))}`, "
                "or choose another out"
            )
        taken = [name for name in _NAMES if there(folder / name)]
        if taken and not there(folder / LOCK):  # a run that was killed when it began leaves its lock
            raise UserError(f"{folder} holds {taken[0]}, which a run would write over; choose another out")
    else:
        folder = _next_free(Path("runs"), f"{dataset}-{model}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the run folder {folder}: {error.strerror}; choose another with out=") from error
    return folder


@contextlib.contextmanager
def beginning(folder: Path) -> Iterator[None]:
    """What a run that cannot begin has noted so far is removed again, so that it may be begun there once more."""
    try:
        yield
    except BaseException:
        if not (folder / CONFIG).exists():
            for name in _NOTES:
                (folder / name).unlink(missing_ok=True)
        raise


class _Ended(TypedDict):
    protocol: str
    steps: int
    last: dict[str, Any]
    best: dict[str, Any]


class RunResult(_Ended, total=False):
    """What result.json says; scores that are not defined are null."""

    best_step: int


def read_result(run: Path) -> dict[str, Any]:
    """What result.json of a finished run says."""
    path = run / RESULT
    values: dict[str, Any] = configs.checked(RunResult, read_json(path), str(path))
    for kind in ("last", "best"):
        for name in _SCORES:
            configs.checked(float | None, values[kind].get(name), f"{path}: {name} of {kind}")
    return values


def _next_free(parent: Path, label: str) -> Path:
    """A new folder LABEL-NUMBER, which no other run that starts at the same time gets too."""
    for number in itertools.count(1):
        folder = parent / f"{label}-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if folder.parent.is_dir():
                continue
            raise UserError(f"cannot make {folder}: {parent} is no folder; choose another place with out=") from None
        except OSError as error:
            raise UserError(f"cannot make {folder}: {error.strerror}; choose another place with out=") from error
        return folder
    raise AssertionError("numbers do not end")


def describe_run(folder: Path, config: TrainConfig, protocol: Protocol, processes: Processes) -> None:
    """Write what the run is made of, before it starts."""
    # config.yaml last: a folder that has it is a run
    line = score_line(protocol, config.val_images)
    write_json(folder / PROTOCOL, {**dataclasses.asdict(protocol), "hash": protocol.hash, "line": line})
    write_json(folder / ENVIRONMENT, environment(processes))
    write_config(config, folder / CONFIG)


def recorded_split(run: Path, data: str | Path) -> dict[str, str] | None:
    """The split that was made of somebody's own images, which are in `data` now, when the run began; None where a
    split.csv or a protocol of the data set says it, or where parts of one image are the split."""
    path = run / PROTOCOL
    if not path.exists() or (Path(data) / "split.csv").exists():
        return None
    protocol: dict[str, Any] = configs.checked(_Recorded, read_json(path), str(path))
    names: dict[str, list[str]] = {split: protocol.get(split) or [] for split in SPLITS}
    if protocol.get("name") in list_protocols() or any(PART.search(name) for each in names.values() for name in each):
        return None
    return {name: split for split, each in names.items() for name in each}


def under_its_name(protocol: Protocol, run: Path) -> Protocol:
    """The protocol of somebody's own folder by the name that the run began with, as the folder may have another now."""
    path = run / PROTOCOL
    if not path.exists() or protocol.name in list_protocols():
        return protocol
    began: dict[str, Any] = configs.checked(_Recorded, read_json(path), str(path))
    name, dataset = began.get("name", ""), began.get("dataset", "")
    if not name or not dataset or name in list_protocols():
        return protocol
    return dataclasses.replace(protocol, name=name, dataset=dataset)


class _Recorded(TypedDict, total=False):
    """Of protocol.json, what is asked for here."""

    name: str
    dataset: str
    train: list[str]
    val: list[str]
    test: list[str]


def score_line(protocol: Protocol, val_images: int | None, split: str = "val") -> str:
    """The line that stands beside the run's scores."""
    part = "" if val_images is None else f", first {val_images} images only"
    return f"{protocol.describe(split)}{part}"


def environment(processes: Processes) -> dict[str, Any]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    gpu = torch.cuda.get_device_name(processes.device) if processes.device.type == "cuda" else None
    return {
        "crispseg": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": versions,
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "cuda": torch.version.cuda if gpu else None,
        "processes": processes.count,
        "command": sys.argv,
    }


def draw(folder: Path, step: int, shown: list[Shown], palette: tuple[tuple[int, int, int], ...]) -> None:
    """samples/NAME-STEP.png for each image: image, truth and prediction side by side."""
    import numpy as np
    from PIL import Image

    for item in shown:
        stride = max(1, -(-max(item.truth.shape) // _LONGEST_SIDE))
        image, truth, prediction = (a[::stride, ::stride] for a in (item.image, item.truth, item.prediction))
        gap = np.full((len(truth), 8, 3), 255, np.uint8)
        picture = np.concatenate([to_rgb(image), gap, paint(truth, palette), gap, paint(prediction, palette)], axis=1)
        with replacing(folder / "samples" / f"{item.name}-{step:06d}.png") as aside:
            Image.fromarray(picture).save(aside, format="png")
