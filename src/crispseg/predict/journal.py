"""What a scene's run has finished so far, kept beside its output so that a killed run can go on.

The output's workplace holds `job.json` (what is being made, from what, by which model) and one compressed file per
finished band. Each file appears whole or not at all. A journal of another job is thrown away, and a damaged band is
made again.
"""

from __future__ import annotations

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
from crispseg.outputs import Workplace
from crispseg.predict.plan import ScenePlan
from crispseg.raster.products import Band, Products

MOVES = "moves.json"  # written when all files are finished: which of them are ours to put in place


class Journal:
    """The finished bands of one job, and a place for its unfinished files. One process at a time may hold it."""

    def __init__(self, target: Path, job: dict[str, Any], plan: ScenePlan, products: Products, classes: int):
        self.target, self.plan, self.products, self.classes = target, plan, products, classes
        self.place = Workplace(target)
        self.folder = self.place.folder
        self._given_up = False
        self.changes: list[str] = []  # what differs from an unfinished job that was thrown away
        try:
            self._keep_only_this_job(json.loads(json.dumps(job)))
        except BaseException:
            self.place.release()
            raise

    def finished(self) -> set[int]:
        """The bands that are there and whole; damaged ones are removed, so that they are made again."""
        found = {int(path.stem.removeprefix("band-")): path for path in self.folder.glob("band-*.z")}
        whole = set()
        for index, path in found.items():
            if index < self.plan.strips and self._is_whole(index):
                whole.add(index)
            else:
                path.unlink()
        return whole

    def write(self, band: Band) -> None:
        with replacing(self._path(band.index)) as aside, aside.open("wb") as file:
            for piece in encoded(band):
                file.write(piece)

    def read(self, index: int) -> Band:
        return self._read(index, self.products)

    def read_without_probabilities(self, index: int) -> Band:
        """They come last in a band's file and take most of its memory."""
        return self._read(index, dataclasses.replace(self.products, probabilities=False))

    def note_finished(self, result: dict[str, Any], made: dict[str, str]) -> None:
        """All files are complete: `made` names each in its workplace, by what it is."""
        write_json(self.folder / MOVES, {"made": made, "result": result})

    def finished_files(self) -> tuple[dict[str, str], dict[str, Any]] | None:
        """What `note_finished` said; None while something is missing, or where the note is damaged."""
        found = _read_json(self.folder / MOVES)
        try:
            made = {str(what): str(name) for what, name in found["made"].items()}
            return made, dict(found["result"])
        except (TypeError, KeyError, AttributeError, ValueError):
            return None

    def remove(self) -> None:
        self.place.remove()

    def give_up(self) -> None:
        """Nothing here is of use to a later run: remove it when nobody writes any more."""
        self._given_up = True

    def release(self) -> None:
        names = {path.name for path in self.place.names()} if self.folder.is_dir() else set()
        if self._given_up or names <= {"lock", "job.json"}:
            self.place.remove()
        else:
            self.place.release()

    def _keep_only_this_job(self, job: dict[str, Any]) -> None:
        before = _read_json(self.folder / "job.json")
        same = before == job
        if same and self.finished_files() is not None:
            return  # what is finished only waits to be put in place
        if not same and isinstance(before, dict):
            self.changes = differences(before, job)
        self.place.clear(keep=("job.json", "band-") if same else ())
        if not same:
            write_json(self.folder / "job.json", job)

    def _read(self, index: int, products: Products) -> Band:
        try:
            return decode(self._path(index).read_bytes(), index, self.plan, products, self.classes)
        except (OSError, ValueError, zlib.error) as error:
            raise UserError(
                f"{self._path(index)} is damaged ({error}); run again, and what is missing is made anew"
            ) from error

    def _is_whole(self, index: int) -> bool:
        try:
            packed = zlib.decompressobj()
            size, rest = 0, self._path(index).read_bytes()
            while not packed.eof:
                piece = packed.decompress(rest, 1 << 20)
                rest = packed.unconsumed_tail
                if not piece and not rest:
                    return False  # cut short
                size += len(piece)
        except (OSError, zlib.error):
            return False
        return packed.eof and not packed.unused_data and size == math.prod(self._size(index, self.products))

    def _size(self, index: int, products: Products) -> tuple[int, int, int]:
        return _band_size(index, self.plan, products, self.classes)

    def _path(self, index: int) -> Path:
        return self.folder / f"band-{index:06d}.z"


def differences(before: Any, now: Any, where: str = "") -> list[str]:
    """The places in which two nested values differ, as dotted names."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [*before, *(key for key in now if key not in before)]
        found = (differences(before.get(key), now.get(key), f"{where}.{key}".lstrip(".")) for key in keys)
        return [place for places in found for place in places]
    return [] if before == now else [where]


def encoded(band: Band) -> Iterator[bytes]:
    """The band's maps, compressed, in pieces: a whole copy of a wide band would take much memory."""
    packing = zlib.compressobj(1)
    for values in (band.classes, band.confidence, band.probabilities):
        if values is not None:
            for row in np.ascontiguousarray(values).reshape(-1, values.shape[-1]):
                yield packing.compress(row.data)
    yield packing.flush()


def decode(data: bytes, index: int, plan: ScenePlan, products: Products, classes: int) -> Band:
    """Of what was encoded, the maps that `products` names."""
    size = _band_size(index, plan, products, classes)
    maps = np.frombuffer(zlib.decompressobj().decompress(data, math.prod(size)), np.uint8).reshape(size)
    return Band(
        index,
        plan.rows.finished(index)[0],
        maps[0],
        maps[1] if products.confidence else None,
        maps[-classes:] if products.probabilities else None,
    )


def _band_size(index: int, plan: ScenePlan, products: Products, classes: int) -> tuple[int, int, int]:
    """(maps, rows, width)"""
    top, bottom = plan.rows.finished(index)
    return 1 + products.confidence + classes * products.probabilities, bottom - top, plan.cols.length


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
