"""Outputs that lose nothing: one run at a time makes a file, what exists is not written over unasked, inputs never.

While an output is made, a hidden folder `.NAME.crisp` beside it holds a lock and all that is unfinished; a finished
file takes its place by one renaming. Only names that are ours are ever removed, and no link is followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from crispseg.errors import UserError, unknown
from crispseg.files import explaining, flush_to_disk, refuse_remote

EXISTING = ("refuse", "skip", "replace")
LOCK = ".lock"  # of a folder that one run at a time may fill
_OURS = re.compile(r"lock|job\.json|moves\.json|band-\d+\.z|making-.+|\..+\.part")
_LAST = ("moves.json", "job.json", "lock")  # removed last and in this order: a run killed in between still knows


def there(path: str | os.PathLike[str]) -> bool:
    """Whether the name is taken; a link that points nowhere takes it too."""
    return os.path.lexists(path)


def check_existing(
    paths: Iterable[Path],
    existing: str,
    minor: Iterable[Path] = (),
    there: Callable[[Path], bool] = there,
    name: Callable[[Path], str] = str,
    hint: str = "remove, or say --existing replace",
) -> bool:
    """Whether to go on. Refuses what is there, or says to skip when all is there (but what is `minor`).

    For outputs that go elsewhere, `there` and `name` tell what is there, and what it is called.
    """
    if existing not in EXISTING:
        raise unknown("way to treat existing files", existing, EXISTING)
    paths = list(paths)
    for path in paths:
        refuse_remote(path)
    found = [path for path in paths if there(path)]
    if not found or existing == "replace":
        for path in found:
            if path.is_dir():
                raise UserError(f"{path} is a folder; choose another output")
        return True
    names = " and ".join(map(name, found))
    verb = "are" if len(found) > 1 else "is"
    if existing == "refuse":
        raise UserError(f"{names} {verb} there already; {hint}")
    missing = [name(path) for path in paths if not there(path) and path not in set(minor)]
    if missing:
        lacking = " and ".join(missing)
        raise UserError(f"{names} {verb} there already, but not {lacking}; {hint}")
    return False


def refuse_inputs(outputs: Iterable[Path], inputs: Iterable[str | os.PathLike[str]]) -> None:
    """No output may be a file that is read, by whatever name, link or spelling."""
    taken = {_identity(path): path for path in outputs}
    for name in inputs:
        output = taken.get(_identity(name))
        if output is not None:
            raise UserError(f"{output} would replace {os.fspath(name)}, which is read; choose another output")


def _identity(path: str | os.PathLike[str]) -> tuple[int, int] | str:
    """Of the file itself where it exists, else of its name."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


class Workplace:
    """The hidden folder beside `target` in which it is made; one process at a time may hold it."""

    def __init__(self, target: Path):
        self.target = target
        self.folder = work_folder(target)
        with explaining(target):
            self._lock = _locked(self.folder, target)

    def making(self, name: str) -> Path:
        """Where the unfinished file `name` is written; nothing is there, whatever a killed run left."""
        path = self.folder / f"making-{name}"
        _remove(path)
        return path

    def names(self) -> Iterator[Path]:
        """What is ours in the folder; what goes last comes last."""
        found = [self.folder / name for name in os.listdir(self.folder) if _OURS.fullmatch(name)]
        yield from sorted(found, key=lambda path: _LAST.index(path.name) if path.name in _LAST else -1)

    def clear(self, keep: tuple[str, ...] = ()) -> None:
        """Remove what is ours, but for the lock and names that begin like one of `keep`."""
        for path in self.names():
            if path.name != "lock" and not path.name.startswith(keep or ("lock",)):
                _remove(path)

    def remove(self) -> None:
        """All of ours, and the folder if nothing else is in it."""
        if self._lock is not None:
            for path in self.names():
                _remove(path)
            with contextlib.suppress(OSError):
                self.folder.rmdir()
        self.release()

    def release(self) -> None:
        """Let others have it; what is unfinished stays, an idle lock does not."""
        if self._lock is not None and os.path.isdir(self.folder) and os.listdir(self.folder) == ["lock"]:
            (self.folder / "lock").unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.folder.rmdir()
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def is_unfinished(name: str) -> bool:
    """Whether `Workplace.making` gives such names."""
    return name.startswith("making-") and _OURS.fullmatch(name) is not None


def work_folder(target: Path) -> Path:
    return target.with_name(f".{target.name}.crisp")


@contextlib.contextmanager
def claiming(targets: Iterable[Path]) -> Iterator[dict[Path, Workplace]]:
    """Workplaces of several outputs, all or none."""
    held: dict[Path, Workplace] = {}
    try:
        for target in targets:
            held[target] = Workplace(target)
        yield held
    finally:
        for place in held.values():
            place.release()


@contextlib.contextmanager
def making(target: Path, existing: str) -> Iterator[Path]:
    """Where to write one output; it takes its name when the block ends without error.

    Unless `existing` is replace, a file of that name is refused, also one that came up meanwhile.
    """
    check_existing([target], "replace" if existing == "replace" else "refuse")
    with claiming([target]) as places:
        aside = places[target].making(target.name)
        try:
            with explaining(target):
                yield aside
            put_in_place(aside, target, existing)
        finally:
            places[target].remove()


def put_in_place(made: Path, target: Path, existing: str) -> None:
    """Give a finished file its name. Unless `existing` is replace, a file that came up meanwhile is not touched.

    A made file that is gone was put in place before a run was killed.
    """
    if not there(made):
        return
    with explaining(target):
        flush_to_disk(made)
        if existing == "replace":
            os.replace(made, target)
        elif _linked(made, target):
            made.unlink()
        elif there(target):
            raise UserError(f"{target} is there already; remove it, or say --existing replace")
        else:
            os.replace(made, target)
        flush_to_disk(target.parent)


def _linked(made: Path, target: Path) -> bool:
    """A second name for the file, which unlike a renaming never takes another's place; False where that cannot be."""
    try:
        os.link(made, target, follow_symlinks=False)
    except FileExistsError:
        return os.path.samestat(os.lstat(made), os.lstat(target))  # linked, then killed
    except (OSError, NotImplementedError):
        return False
    return True


@contextlib.contextmanager
def only_one(folder: Path, doing: str) -> Iterator[None]:
    """Hold a folder of ours (of a training run, of a prepared data set): no second run may write there meanwhile."""
    with explaining(folder):
        lock = _lock(folder / LOCK, f"another run is {doing} {folder}; wait for it or choose another folder")
    try:
        yield
    finally:
        if lock is not None:
            with contextlib.suppress(OSError):
                (folder / LOCK).unlink(missing_ok=True)
            lock.close()


def _locked(folder: Path, target: Path) -> _Lock | None:
    """Make the folder and lock it; whoever had it may be removing it just now."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(100):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise UserError(
                f"{folder} is not a folder of crisp (a link or a file); remove it, or choose another output"
            )
        with contextlib.suppress(FileNotFoundError):
            return _lock(folder / "lock", f"another run is making {target}; wait for it or choose another output")
    raise UserError(f"{folder} comes and goes; is another run making {target}?")


class _Lock:
    """An open, locked file. A forked child does not keep it: loader processes must not outlive the run's claim."""

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
        _open_locks.add(self)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


_open_locks: weakref.WeakSet[_Lock] = weakref.WeakSet()


def _close_locks() -> None:
    for lock in list(_open_locks):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_locks)


def _lock(path: Path, refusal: str) -> _Lock | None:
    """Held until the process ends, however it ends; systems without flock go unguarded."""
    try:
        import fcntl
    except ImportError:
        return None
    for _ in range(100):
        lock = _Lock(_open_lock(path))
        try:
            fcntl.flock(lock.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise UserError(refusal) from error
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.descriptor), os.lstat(path)):
                return lock
        lock.close()  # whoever had it has removed it in between
    raise UserError(refusal)


def _open_lock(path: Path) -> int:
    """Nothing is written to it and no link is followed: it may be anybody's file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise UserError(f"{path} is a link, not a lock of crisp; remove it, or choose another output") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path} is not a lock of crisp; remove it, or choose another output")
    return descriptor


def _remove(path: Path) -> None:
    """A file, a link (never what it points to), or a folder of ours."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
