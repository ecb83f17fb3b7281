"""Decoded images kept at hand, so that a training window does not decode a whole file again.

In memory up to a budget, or as memory-mapped .npy files in a cache folder, which workers and processes share
through the operating system's page cache.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from crispseg.data.folder import Folder, Record
from crispseg.data.gaps import as_shown
from crispseg.data.images import Array
from crispseg.data.labels import Mask
from crispseg.data.protocol import Labels
from crispseg.errors import UserError
from crispseg.files import replacing
from crispseg.reading import DAMAGE

_RULES = 4  # by which pixels and labels are made of the files; what was kept by others is made anew
BUDGET = 6 << 30  # bytes


class Arrays:
    """(image, mask) of records by position; what does not fit the budget is decoded anew when asked for."""

    def __init__(
        self,
        folder: Folder,
        records: tuple[Record, ...],
        labels: Labels,
        cache: str | Path | None = None,
        budget: int = BUDGET,
    ) -> None:
        self.mean: tuple[float, ...] = ()  # shown where single bands have no data; to be set before images are read
        self._folder, self._records, self._labels = folder, records, labels
        self._cache = Path(cache) if cache is not None else None
        self._budget = budget
        self._held: dict[int, tuple[Array, Mask]] = {}
        self._bytes = 0

    def fill(self, threads: int = 8) -> None:
        """Decode now what fits, before workers are forked, so that they share it instead of each decoding."""
        size = np.dtype(self._folder.dtype).itemsize * self._folder.bands + 1
        room, positions = self._budget, []
        for position, record in enumerate(self._records):
            room -= record.height * record.width * size
            if room < 0 and self._cache is None:
                break
            positions.append(position)
        with ThreadPoolExecutor(threads) as pool:
            for position, pair in zip(positions, pool.map(self._load, positions), strict=True):
                self._keep(position, pair)

    def __getitem__(self, position: int) -> tuple[Array, Mask]:
        if position in self._held:
            return self._held[position]
        pair = self._load(position)
        self._keep(position, pair)
        return pair

    def _keep(self, position: int, pair: tuple[Array, Mask]) -> None:
        size = 0 if self._cache is not None else pair[0].nbytes + pair[1].nbytes  # mapped files are not ours to count
        if self._bytes + size <= self._budget:
            self._held[position] = pair
            self._bytes += size

    def _load(self, position: int) -> tuple[Array, Mask]:
        record = self._records[position]
        if self._cache is None:
            return self._decode(record)
        paths = [self._cache / f"{record.name}-{self._stamp(record)}-{part}.npy" for part in ("image", "mask")]
        kept = _mapped(paths)
        if kept is None or kept[1].shape != kept[0].shape[:2] or kept[1].dtype != np.uint8:
            for path, array in zip(paths, self._decode(record), strict=True):
                with replacing(path) as aside, aside.open("wb") as file:
                    np.save(file, array)
            kept = _mapped(paths)
        if kept is None:
            raise UserError(f"cannot read back {paths[0]}; is data.cache on a disk that works?")
        return kept[0], kept[1]

    def _decode(self, record: Record) -> tuple[Array, Mask]:
        gapped, mask = self._folder.read_pair(record, self._labels)
        image = as_shown(gapped, self.mean)
        return np.nan_to_num(image) if image.dtype.kind == "f" else image, mask

    def _stamp(self, record: Record) -> str:
        """Changes with the files and with the meaning of the labels; the record's name tells the part taken."""
        files = [record.image, *([record.masks[self._labels]] if self._labels in record.masks else [])]
        facts = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        key = repr((_RULES, facts, self._labels, self._folder.protocol.hash, self._folder.table, self.mean))
        return hashlib.sha256(key.encode()).hexdigest()[:16]


def _mapped(paths: list[Path]) -> list[Array] | None:
    """The arrays of these files, or None where one is missing or damaged."""
    try:
        return [np.load(path, mmap_mode="r", allow_pickle=False) for path in paths]
    except DAMAGE:
        return None
