"""What a target is."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Target:
    """`make` writes the sound folder, once; `files` are damaged, one at a time; `read` gets the folder."""

    name: str
    make: Callable[[Path], None]
    files: tuple[str, ...]
    read: Callable[[Path], object]
    share: int = 4  # of the cases, relative to the others


@contextlib.contextmanager
def replaced(owner: Any, name: str, stand_in: Any) -> Iterator[None]:
    """In this block `owner` has another attribute of this name."""
    kept = getattr(owner, name)
    setattr(owner, name, stand_in)
    try:
        yield
    finally:
        setattr(owner, name, kept)
