"""Maps kept between passes, in memory or in nameless temporary files.

A file is read and written rather than mapped: pages of a mapped file count as the process's memory. It has no name
(the operating system frees it when it is closed, even by a crash), so nothing can be left behind.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

import torch
from torch import Tensor

from crispseg.errors import UserError
from crispseg.exact.plan import MapPlan
from crispseg.exact.stream import Stream, bands

_DISK_FULL = (28, 122)  # ENOSPC, EDQUOT
Folder = str | os.PathLike[str] | None


class RowMap:
    """A map (H, W, C) that is written and read by bands of rows; it may be overwritten while it is streamed."""

    def __init__(self, plan: MapPlan, dtype: torch.dtype, file: IO[bytes] | None) -> None:
        self.plan, self.dtype = plan, dtype
        self.file = file
        self.data = None if file else torch.empty(plan.height, plan.width, plan.channels, dtype=dtype)

    def write(self, top: int, rows: Tensor) -> None:
        """Store (1, rows, W, C) from row `top` on."""
        values = rows[0].to("cpu", self.dtype).contiguous()
        if self.dtype == torch.float16 and not values.isfinite().all():
            raise UserError("a feature of this scene is too large for float16; keep the features in float32")
        if self.data is not None:
            self.data[top : top + len(values)] = values
            return
        assert self.file is not None
        self.file.seek(top * self._row_bytes)
        with _explaining_full_disk(self.plan.name):
            self.file.write(values.view(torch.uint8).numpy().data)
            self.file.flush()

    def read(self, top: int, bottom: int) -> Tensor:
        """Rows top ... bottom - 1 as a fresh tensor (1, rows, W, C)."""
        if self.data is not None:
            return self.data[None, top:bottom].clone()
        assert self.file is not None
        values = torch.empty(bottom - top, self.plan.width, self.plan.channels, dtype=self.dtype)
        self.file.seek(top * self._row_bytes)
        self.file.readinto(values.view(torch.uint8).numpy().data)  # type: ignore[attr-defined]
        return values[None]

    def close(self) -> None:
        self.data = None
        if self.file is not None:
            with contextlib.suppress(OSError):  # a full disk was reported when it was written to
                self.file.close()

    @property
    def _row_bytes(self) -> int:
        return self.plan.width * self.plan.channels * self.dtype.itemsize


class Storage:
    """The maps of one run, opened and closed by name; leaving the `with` block closes what is left."""

    def __init__(self, dtype: torch.dtype, folder: Folder) -> None:
        self.dtype, self.folder = dtype, folder
        self.maps: dict[str, RowMap] = {}

    def open(self, plan: MapPlan) -> RowMap:
        self.maps[plan.name] = RowMap(plan, self.dtype, self._file() if plan.on_disk else None)
        return self.maps[plan.name]

    def close(self, name: str) -> None:
        self.maps.pop(name).close()

    def __enter__(self) -> Storage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self.maps):
            self.close(name)

    def _file(self) -> IO[bytes]:
        try:
            return tempfile.TemporaryFile(dir=self.folder)
        except OSError as error:
            place = Path(self.folder or tempfile.gettempdir())
            raise UserError(f"cannot keep features in {place}: {error.strerror}; choose another folder") from error


@contextlib.contextmanager
def _explaining_full_disk(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        raise UserError(f"no disk space left for the features of {name}; free some or choose another folder") from error


def stream_map(source: RowMap, rows: int, like: Tensor) -> Stream:
    """The map in bands, on the device and in the precision of `like`."""
    for top, bottom in bands(source.plan.height, rows):
        yield (source.read(top, bottom).to(like),)
