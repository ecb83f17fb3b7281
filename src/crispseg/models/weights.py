"""Reading weight files safely: safetensors, or torch files with `weights_only=True`."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crispseg.errors import UserError


def read_weights(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What the file holds, on the CPU; a missing, truncated or unsafe file is a UserError."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"no weight file {path}")
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except (SafetensorError, ValueError) as error:
            raise UserError(f"{path} is damaged or cut short ({error}); copy or download it again") from error
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} is not a plain weight file: it is damaged, or holds Python objects that are not loaded for safety"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise UserError(f"{path} is damaged or cut short ({_first_line(error)})") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}, not named weights")
    return content


def tensors_in(content: dict[str, Any], keys: tuple[str, ...] = ("model", "state_dict")) -> dict[str, Tensor]:
    """The named tensors of a checkpoint: those under the first of `keys` that is there, or its own."""
    for key in keys:
        if isinstance(content.get(key), dict):
            content = content[key]
            break
    return {name: value for name, value in content.items() if isinstance(value, Tensor)}


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
