"""Reading weight files safely: safetensors, or torch files with `weights_only=True`."""

from __future__ import annotations

import os
import pickle
import pickletools
import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from crispseg.errors import UserError
from crispseg.models.budget import Held
from crispseg.reading import DAMAGE, reason, require_file


def read_weights(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What the file holds, on the CPU; a missing, truncated or unsafe file is a UserError."""
    path = Path(path)
    require_file(path, "weight file")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    size = path.stat().st_size
    try:
        _refuse_packed(path, size)
        _refuse_long_words(path)
        _refuse_large(torch.load(path, map_location="meta", weights_only=True), size)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} is not a plain weight file: it is damaged, or holds Python objects that are not loaded for safety"
        ) from error
    except (*DAMAGE, struct.error, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is damaged or cut short ({reason(error)})") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}, not named weights")
    return content


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (*DAMAGE, SafetensorError) as error:
        raise UserError(f"{path} is damaged or cut short ({reason(error)}); copy or download it again") from error


def read_weight_names(path: Path) -> dict[str, Held]:
    """Name, shape and type of every tensor of a safetensors file; none is read."""
    from safetensors import SafetensorError, safe_open

    require_file(path, "weight file")
    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: Held(tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
    except (*DAMAGE, SafetensorError) as error:
        raise UserError(f"{path} is damaged or cut short ({reason(error)}); copy or download it again") from error


def _refuse_packed(path: Path, size: int) -> None:
    """torch stores the parts of its files as they are; one that grows when it is read is none of torch's."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any(member.file_size > size for member in archive.infolist()):
                raise ValueError("a part of it is larger than the file")


_LONG_WORD = re.compile(r"\S{1000}")


def _refuse_long_words(path: Path) -> None:
    """torch searches what it says of a file it cannot read, in time that grows with the square of the longest word."""
    for file in _pickles(path):
        for _, value, _ in pickletools.genops(file):
            if isinstance(value, str) and _LONG_WORD.search(value):
                raise ValueError("a name in it has 1,000 characters and more")


def _pickles(path: Path) -> Iterator[IO[bytes]]:
    """torch's files are zip archives with one pickle; those before torch 1.6 begin with five of them."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith("data.pkl"):
                    with archive.open(name) as member:
                        yield member
    else:
        with path.open("rb") as file:
            for _ in range(5):
                yield file


def _refuse_large(content: Any, size: int) -> None:
    """Tensors on the meta device, as the file describes them: none may need more than the file has."""
    waiting, seen = [content], {id(content)}  # a pickle may hold itself
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            if value.layout is torch.strided and value.untyped_storage().nbytes() > size:
                raise ValueError("a tensor in it is larger than the file")
        elif isinstance(value, dict | list | tuple):
            inner = list(value.values()) if isinstance(value, dict) else list(value)
            waiting += [part for part in inner if id(part) not in seen]
            seen.update(map(id, inner))


def tensors_in(content: dict[str, Any], keys: tuple[str, ...] = ("model", "state_dict")) -> dict[str, Tensor]:
    """The named tensors of a checkpoint: those under the first of `keys` that is there, or its own."""
    for key in keys:
        if isinstance(content.get(key), dict):
            content = content[key]
            break
    return {
        name: value
        for name, value in content.items()
        if isinstance(name, str) and isinstance(value, Tensor) and value.layout is torch.strided
    }
