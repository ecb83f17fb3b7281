"""Where finished files go: to their names on this machine, or to an object store.

Everything for a remote output is made in a scratch folder of this machine, with the journal and the guards that local
outputs have; finished files are then uploaded, the class map last. A run that is killed goes on from that folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from crispseg.errors import UserError
from crispseg.geo import store
from crispseg.outputs import check_existing, put_in_place, there

SCRATCH = "CRISP_SCRATCH"  # the environment variable that names the scratch folder


class Landing:
    """Finished files take their names on this machine."""

    def name(self, path: Path) -> str:
        """What the user calls it."""
        return str(path)

    def there(self, path: Path) -> bool:
        return there(path)

    def check_existing(self, paths: Iterable[Path], existing: str, minor: Iterable[Path] = ()) -> bool:
        """See outputs.check_existing."""
        return check_existing(paths, existing, minor, self.there, self.name)

    def check_writable(self) -> None:
        """Refuse before the work what would fail after it."""

    def put(self, made: Path, path: Path, existing: str) -> None:
        put_in_place(made, path, existing)

    def tidy(self) -> None:
        """All that was to be put is put."""


class RemoteLanding(Landing):
    """Files made in the folder `staging` go to the remote `folder`; others take their names on this machine."""

    def __init__(self, folder: str, staging: Path):
        self.folder, self.staging = folder, staging

    def name(self, path: Path) -> str:
        return f"{self.folder}/{path.name}" if self._is_remote(path) else super().name(path)

    def there(self, path: Path) -> bool:
        return store.exists(self.name(path)) if self._is_remote(path) else super().there(path)

    def check_writable(self) -> None:
        store.check_writable(self.folder)

    def put(self, made: Path, path: Path, existing: str) -> None:
        if not self._is_remote(path):
            super().put(made, path, existing)
        elif there(made):  # otherwise it was uploaded before a run was killed
            if existing != "replace" and store.exists(self.name(path)) and not _same(made, self.name(path)):
                raise UserError(f"{self.name(path)} is there already; remove it, or say --existing replace")
            store.put(made, self.name(path))
            made.unlink()

    def tidy(self) -> None:
        with contextlib.suppress(OSError):
            self.staging.rmdir()

    def _is_remote(self, path: Path) -> bool:
        return path.parent == self.staging


def find_landing(
    output: str, scratch: str | None = None, endings: tuple[str, ...] = (".tif", ".tiff")
) -> tuple[Landing, str]:
    """For the output that the user named: where files land, and the name to make them under on this machine.

    What has none of the `endings` is a folder.
    """
    if not store.is_remote(output):
        return Landing(), output
    store.refuse_web(output)
    folder, _, last = output.rpartition("/")
    is_file = last.lower().endswith(endings)
    if not is_file:
        folder = output.rstrip("/")
    if folder.endswith(":/") or not folder.partition("://")[2]:
        raise UserError(f"{output} names no bucket and no file; say e.g. s3://bucket/maps/map.tif")
    staging = scratch_folder(scratch) / hashlib.sha256(folder.encode()).hexdigest()[:16]
    return RemoteLanding(folder, staging), str(staging / last) if is_file else f"{staging}/"


def scratch_folder(scratch: str | None = None) -> Path:
    """What was asked for, else $CRISP_SCRATCH, else a folder of the user's cache."""
    chosen = scratch or os.environ.get(SCRATCH)
    if chosen:
        return Path(chosen).absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache).absolute() / "crispseg" / "remote"


def check_room(folder: Path, least: int) -> None:
    """Refuse to begin what surely does not fit; `least` is in bytes."""
    parent = next(p for p in (folder, *folder.absolute().parents) if p.is_dir())
    free = shutil.disk_usage(parent).free
    if free < least:
        raise UserError(
            f"{folder} has {free / 2**20:.0f} MiB free, and this scene needs about {least / 2**20:.0f} MiB there; make "
            f"room or choose another place (for remote outputs: --scratch)"
        )


def _same(made: Path, name: str) -> bool:
    """Whether an object is the upload of this file: a run may be killed after it and before the file is removed."""
    return store.size_of(name) == made.stat().st_size and store.digest(name) == _digest(made)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
