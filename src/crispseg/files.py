"""Writing files so that nothing half-written is ever found: write aside, flush to disk, then rename."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crispseg.errors import UserError


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path beside `path` to write to; it takes `path`'s name only when the block ends without error."""
    target = Path(path)
    aside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with _explaining(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            yield aside
            _flush_to_disk(aside)
            os.replace(aside, target)
    finally:
        if aside.is_dir():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    with replacing(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def _explaining(target: Path) -> Iterator[None]:
    """Turn the operating system's refusals about `target` into one sentence."""
    try:
        yield
    except PermissionError as error:
        raise UserError(f"may not write {target}: {error.strerror}; choose another place") from error
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise UserError(f"no space left to write {target}; free some and run again") from error
        if error.errno in _NOT_WRITABLE:
            raise UserError(f"cannot write {target}: {error.strerror}") from error
        raise


_DISK_FULL = (28, 122)  # ENOSPC, EDQUOT
_NOT_WRITABLE = (17, 20, 21, 30, 36)  # EEXIST, ENOTDIR, EISDIR, EROFS, ENAMETOOLONG


def _flush_to_disk(path: Path) -> None:
    if path.is_file():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
