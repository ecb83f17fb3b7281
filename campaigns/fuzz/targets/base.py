"""What a target is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Target:
    """`make` writes the sound folder, once; `files` are damaged, one at a time; `read` gets the folder."""

    name: str
    make: Callable[[Path], None]
    files: tuple[str, ...]
    read: Callable[[Path], object]
    share: int = 4  # of the cases, relative to the others
