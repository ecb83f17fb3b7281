"""Trained models that come with the package, by name: folders below crispseg/shipped, so no network is needed."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

from crispseg.errors import UserError, nearest
from crispseg.models.hub import fetch, is_hub
from crispseg.reading import read_yaml_file

RUN_CONFIG, BEST = "config.yaml", "best"  # of a training run's folder
PRETRAINED = "backbone"  # what a pretraining run's folder has instead of best/
_FOLDER = Path(__file__).parents[1] / "shipped"
BACKBONES = _FOLDER / "backbones"
DEFAULT = "crisp_nano_aerial"  # of predict, segment, the demo and `crisp doctor --warm`


def list_shipped() -> list[str]:
    return sorted(path.parent.name for path in _FOLDER.glob("*/config.json"))


def is_shipped(folder: Path) -> bool:
    """Whether a model folder is one that comes with the package."""
    return folder.parent == _FOLDER


def list_backbones_with_weights() -> list[str]:
    """Names of the pretrained backbones that come along."""
    return sorted(path.parent.name for path in BACKBONES.glob("*/config.json"))


def is_saved(word: str | os.PathLike[str]) -> bool:
    """Whether `load` has something to open under this word: a folder, a shipped model, or an exported file."""
    return _is_there(word) or os.fspath(word) in list_shipped()


def _is_there(word: str | os.PathLike[str]) -> bool:
    return Path(word).is_dir() or Path(word).suffix.lower() == ".onnx" or is_hub(os.fspath(word))


def find_folder(word: str | os.PathLike[str]) -> Path:
    """The model folder meant by a path, by a training run (its best weights so far) or by the name of a shipped model;
    what lies at the path wins."""
    path, name = Path(word), os.fspath(word)
    if is_hub(name):
        return fetch(name)
    if (path / RUN_CONFIG).is_file() and not (path / "config.json").is_file():
        if is_pretraining(path):
            raise UserError(f"{path} is a pretraining run, which leaves a backbone and no model; {_how_to_use(name)}")
        if not (path / BEST / "config.json").is_file():
            raise UserError(f"the run in {path} has no {BEST}/ yet: it comes with the first validation")
        return path / BEST
    if path.exists():
        return path
    shipped = list_shipped()
    if name in shipped:
        return _FOLDER / name
    if name in list_backbones_with_weights():
        raise UserError(f"{name} is a pretrained backbone and no model; {_how_to_use(name)}")
    hint = nearest(name, shipped)
    if not hint:
        hint = "; give one written by model.save or by `crisp train`"
        hint += f", or the name of one that comes with crispseg: {', '.join(shipped)}" if shipped else ""
    raise UserError(f"there is no model folder {name}{hint}")


def _how_to_use(backbone: str) -> str:
    return f"train a model from it with `crisp train FOLDER {shlex.quote(f'model.weights={backbone}')}`"


def is_pretraining(run: str | os.PathLike[str]) -> bool:
    """Whether a folder is a run of `crisp pretrain`, finished or not: its config has sets."""
    try:
        config = read_yaml_file(Path(run) / RUN_CONFIG)
    except UserError:
        return False
    return isinstance(config, dict) and "sets" in config


def run_of(folder: Path) -> Path | None:
    """The training run whose best weights this model folder holds, if it is one's."""
    run = folder.parent
    return run if folder.name == BEST and (run / RUN_CONFIG).is_file() else None


def title_of(word: str | os.PathLike[str]) -> str:
    """What a model is called that `load` opens under this word: as on the hub, its run, its folder or its file."""
    if is_hub(os.fspath(word)):
        return os.fspath(word)
    path = Path(word).resolve()
    return (run_of(path) or path).name


def read_card(name: str) -> dict[str, Any]:
    """What config.json of a shipped model says, without its weights."""
    return _card(_FOLDER / name)


def read_backbone_card(name: str) -> dict[str, Any]:
    """What config.json of a shipped backbone says, without its weights."""
    return _card(BACKBONES / name)


def _card(folder: Path) -> dict[str, Any]:
    card: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return card
