"""What a scene's run has finished so far, kept beside its output so that a killed run can go on.

A hidden folder holds `job.json` (what is being made, from what, by which model) and one compressed file per finished
band. Each file appears whole or not at all. A journal of another job is thrown away.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from crispseg.errors import UserError
from crispseg.files import replacing, write_json
from crispseg.predict.plan import Plan
from crispseg.predict.products import Band, Products

MOVES = "moves.json"  # written when all files are finished: where each goes


def journal_folder(target: Path) -> Path:
    return target.with_name(f".{target.name}.crisp")


class Journal:
    """The finished bands of one job, and a place for its unfinished files. One process at a time may hold it."""

    def __init__(self, target: Path, job: dict[str, Any], plan: Plan, products: Products, classes: int):
        self.folder = journal_folder(target)
        self.moves = self.folder / MOVES
        self.plan, self.products, self.classes = plan, products, classes
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write in {target.parent}: {error.strerror}; choose another place") from error
        self._lock_file = _lock(self.folder / "lock", target)
        self._given_up = False
        self._keep_only_this_job(job)

    def finished(self) -> set[int]:
        return {int(path.stem.removeprefix("band-")) for path in self.folder.glob("band-*.z")}

    def write(self, band: Band) -> None:
        with replacing(self._path(band.index)) as aside, aside.open("wb") as file:
            for piece in encoded(band):
                file.write(piece)

    def read(self, index: int) -> Band:
        return decode(self._path(index).read_bytes(), index, self.plan, self.products, self.classes)

    def read_without_probabilities(self, index: int) -> Band:
        """They come last in a band's file and take most of its memory."""
        products = dataclasses.replace(self.products, probabilities=False)
        return decode(self._path(index).read_bytes(), index, self.plan, products, self.classes)

    def remove(self) -> None:
        """The note that all is finished goes last: a run killed in between still knows it."""
        for path in sorted(self.folder.iterdir(), key=lambda path: path.name == MOVES):
            path.unlink(missing_ok=True)
        self.folder.rmdir()

    def give_up(self) -> None:
        """Nothing here is of use to a later run: remove it when nobody writes any more."""
        self._given_up = True

    def release(self) -> None:
        if self._given_up:
            self.remove()
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    def _keep_only_this_job(self, job: dict[str, Any]) -> None:
        same = _read_json(self.folder / "job.json") == json.loads(json.dumps(job))
        kept = ("lock", "job.json", "band-") if same else ("lock",)
        if not (same and self.moves.exists()):  # what is finished only waits to be renamed
            for path in self.folder.iterdir():
                if not path.name.startswith(kept):
                    path.unlink()
        if not same:
            write_json(self.folder / "job.json", job)

    def _path(self, index: int) -> Path:
        return self.folder / f"band-{index:06d}.z"


def encoded(band: Band) -> Iterator[bytes]:
    """The band's maps, compressed, in pieces: a whole copy of a wide band would take much memory."""
    packing = zlib.compressobj(1)
    for values in (band.classes, band.confidence, band.probabilities):
        if values is not None:
            for row in np.ascontiguousarray(values).reshape(-1, values.shape[-1]):
                yield packing.compress(row.data)
    yield packing.flush()


def decode(data: bytes, index: int, plan: Plan, products: Products, classes: int) -> Band:
    """Of what was encoded, the maps that `products` names."""
    top, bottom = plan.rows.finished(index)
    size = (1 + products.confidence + classes * products.probabilities, bottom - top, plan.cols.length)
    maps = np.frombuffer(zlib.decompressobj().decompress(data, math.prod(size)), np.uint8).reshape(size)
    return Band(
        index,
        top,
        maps[0],
        maps[1] if products.confidence else None,
        maps[-classes:] if products.probabilities else None,
    )


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _lock(path: Path, target: Path) -> Any:
    """Held until the process ends, however it ends; systems without flock go unguarded."""
    with contextlib.suppress(ImportError):
        import fcntl

        file = path.open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise UserError(f"another run is making {target}; wait for it or choose another output") from error
        return file
    return None
