"""Saving and loading the whole state of a run: written aside, renamed, readable with `weights_only=True`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

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


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The state saved at `path`, on the CPU."""
    try:
        state = read_weights(path)
    except UserError as error:
        twin = path.with_name(BEST if path.name == LAST else LAST)
        if path.exists() and twin.exists():
            raise UserError(f"{error}; {twin.name} beside it is a whole checkpoint too: copy it over") from error
        raise
    if state.get("format") != FORMAT:
        raise UserError(f"{path} is no checkpoint of a training run, or of another version of crispseg")
    return state


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed process was writing aside."""
    for part in folder.glob(".*.part"):
        if part.is_file():
            part.unlink(missing_ok=True)
