"""Saving and loading the whole state of a run: written aside, renamed, readable with `weights_only=True`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor

from crispseg import config as configs
from crispseg.errors import UserError
from crispseg.files import replacing
from crispseg.models.weights import read_weights

FORMAT = 1
LAST, BEST = "last.pt", "best.pt"


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Replace `path` by `state` (tensors and plain values). Until the new file is whole the old one stays."""
    # Through memory: torch's own writer reports a full disk as an internal error.
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **state}, buffer)
    with replacing(path) as aside:
        aside.write_bytes(buffer.getbuffer())


class _State(TypedDict):
    format: int
    model: dict[str, Any]
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    average: dict[str, list[Tensor]] | None
    lookahead: dict[str, list[Tensor]] | None
    protocol: str
    step: int
    best: Best
    seconds: float
    meter: Sums


class State(_State, total=False):
    """What the checkpoint of a training run holds; `Stepper` knows more of its parts."""

    started_from: str


class _Best(TypedDict):
    step: int
    mIoU: float | None


class Best(_Best, total=False):
    temperature: float


class Sums(TypedDict):
    sums: dict[str, float]
    steps: int


def load_checkpoint(path: Path, kind: Any = dict[str, Any]) -> Any:
    """The state saved at `path`, on the CPU, as the TypedDict `kind`."""
    try:
        content = read_weights(path)
        if content.get("format") != FORMAT:
            raise UserError(f"{path} is no checkpoint of a training run, or of another version of crispseg")
        return configs.checked(kind, content, str(path))
    except UserError as error:
        twin = path.with_name(BEST if path.name == LAST else LAST)
        if path.exists() and twin.exists():
            raise UserError(f"{error}; {twin.name} beside it may be whole: copy it over") from error
        raise


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed process was writing aside."""
    for part in folder.glob(".*.part"):
        if part.is_file():
            part.unlink(missing_ok=True)
