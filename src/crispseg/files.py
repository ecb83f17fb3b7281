"""Writing files so that nothing half-written is ever found: write aside, flush to disk, then rename."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crispseg.errors import UserError

_HERE = hashlib.sha256(platform.node().encode()).hexdigest()[:6]  # this machine, in the names of what it writes aside

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/+(.*)", re.DOTALL)  # a Path has lost its second slash


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path beside `path` to write to; it takes `path`'s name only when the block ends without error.

    Its name cannot be guessed, so no link can wait there. What killed processes of this machine left of earlier
    writes of the same file is removed.
    """
    target = Path(path)
    aside = target.with_name(f".{target.name}.{_HERE}-{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with explaining(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            sweep(target.parent, target.name)
            yield aside
            flush_to_disk(aside)
            os.replace(aside, target)
            flush_to_disk(target.parent)
    finally:
        _remove(aside)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    with replacing(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sweep(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes of this machine were writing aside in `folder`: of the file `name`, or of any."""
    wanted = re.compile(rf"\.{'.+' if name is None else re.escape(name)}\.{_HERE}-(\d+)-[0-9a-f]{{8}}\.part")
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            match = wanted.fullmatch(entry.name)
            if match and not _lives(int(match[1])):
                _remove(Path(entry.path))


def refuse_remote(target: str | os.PathLike[str]) -> None:
    """Refuse an address as the name of what is written here: s3://bucket/x would be a file in a folder named `s3:`."""
    address = _ADDRESS.match(os.fspath(target))
    if address:
        raise UserError(
            f"{address[1]}://{address[2]} is not on this machine, and only maps and polygons are written elsewhere "
            "(crisp predict, crisp vectorize); name a file or folder here"
        )


@contextlib.contextmanager
def explaining(target: str | os.PathLike[str]) -> Iterator[None]:
    """Turn the operating system's refusals about `target` into one sentence."""
    refuse_remote(target)
    try:
        yield
    except PermissionError as error:
        raise UserError(f"may not write {target}: {error.strerror}; choose another place") from error
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise no_space(target) from error
        if error.errno in _NOT_WRITABLE:
            raise UserError(f"cannot write {target}: {_in_the_way(Path(target)) or error.strerror}") from error
        raise


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Refuse before the work a folder that cannot be made, or not written to; nothing is made yet."""
    with explaining(folder):
        standing = next(path for path in (Path(folder), *Path(folder).absolute().parents) if path.exists())
        if not standing.is_dir():
            raise UserError(f"cannot write to the folder {folder}: {standing} is a file, not a folder")
        if not os.access(standing, os.W_OK | os.X_OK):
            raise UserError(f"may not write to the folder {folder}; choose another place")


def no_space(target: str | os.PathLike[str]) -> UserError:
    return UserError(f"no space left to write {target}; free some and run again")


def says_full(error: BaseException | None) -> bool:
    """Whether it, or what it came from, tells of a full disk or quota; libraries in C tell in words."""
    if error is None:
        return False
    full = isinstance(error, OSError) and error.errno in _DISK_FULL
    words = ("No space left on device", "Disk quota exceeded", "database or disk is full")
    return full or any(text in str(error) for text in words) or says_full(error.__cause__)


def _in_the_way(target: Path) -> str:
    """The file that stands where a folder of this path should be, in words; the system says "File exists"."""
    return next((f"{path} is a file, not a folder" for path in target.parents if path.is_file()), "")


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (
    *(errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.EIO),
    *(errno.ENOTEMPTY, errno.EFBIG),
)


def flush_to_disk(path: Path) -> None:
    """A file's content, or a folder's names; systems that cannot flush folders go without."""
    if path.is_dir():
        with contextlib.suppress(OSError):
            opened = os.open(path, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)
    elif path.is_file():
        with path.open("rb+") as file:
            os.fsync(file.fileno())


def _remove(aside: Path) -> None:
    """A link is removed, never followed."""
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True
