"""A set's pictures at one size, in 8 bits: decoded when asked for, or once and held in memory or on the device."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from crispseg.data.images import Array
from crispseg.data.loader import WorkerBatches, epoch_order
from crispseg.files import replacing
from crispseg.pretrain.draws import Whole
from crispseg.pretrain.sources import Source
from crispseg.reading import DAMAGE
from crispseg.threads import available_cores
from crispseg.train.watch import shielding_workers

HELD = 8 << 30  # bytes that all pictures of a run may take, unless told otherwise
_WORKERS, _CHUNK = 16, 256


class Pictures(Dataset[Tensor]):
    """Picture `index` is (3, side, side) of 8 bits."""

    def __init__(self, source: Source, side: int) -> None:
        self.source, self.side = source, side
        self.held: Tensor | None = None

    def __len__(self) -> int:
        return len(self.source)

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.source.labels

    @property
    def classes(self) -> tuple[str, ...]:
        return self.source.classes

    @property
    def bytes(self) -> int:
        return 3 * self.side**2 * len(self)

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(fitted(self.source.read(int(index)), self.side)).permute(2, 0, 1).contiguous()

    def hold(self, device: torch.device, cache: str | Path | None = None) -> None:
        """Decode all of them now, and keep them on the device; with `cache`, also in a file there for other runs."""
        shape = (len(self), 3, self.side, self.side)
        if cache is None:
            held = np.empty(shape, np.uint8)
            with ThreadPoolExecutor(_WORKERS) as pool:
                list(pool.map(lambda start: _fill(self, held, start), range(0, len(self), _CHUNK)))
        else:
            held = self._from_cache(Path(cache), shape)
        self.held = torch.from_numpy(held).to(device)

    def _from_cache(self, cache: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        path = cache / f"pictures-{self._stamp()}.npy"
        kept = _read_cache(path, shape)
        if kept is None:
            with replacing(path) as aside:
                np.lib.format.open_memmap(aside, mode="w+", dtype=np.uint8, shape=shape).flush()
                starts = range(0, len(self), _CHUNK)
                context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
                with context.Pool(min(_WORKERS, available_cores()), _share, (self, aside)) as pool:
                    pool.map(_fill_file, starts)
                    pool.close()
                    pool.join()
            kept = np.load(path, allow_pickle=False)
        return kept

    def _stamp(self) -> str:
        """Changes with the files, by their names, sizes and times of writing, and with the side."""
        digest = hashlib.blake2b(f"{self.side}/{len(self)}/".encode(), digest_size=10)
        for index in range(len(self)):
            digest.update(self.source.name(index).encode())
        for path in self.source.files:
            facts = os.stat(path)
            digest.update(f"{facts.st_size}/{facts.st_mtime_ns}/".encode())
        return digest.hexdigest()

    def take(self, indices: Whole, device: torch.device) -> Tensor:
        """(B, 3, side, side) on the device."""
        if self.held is not None:
            return self.held[torch.from_numpy(indices).to(self.held.device)].to(device)
        return torch.stack([self[int(index)] for index in indices]).to(device)


def _read_cache(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
    """What an earlier run left; None where there is nothing, or something damaged."""
    try:
        array: NDArray[np.uint8] = np.load(path, allow_pickle=False)
    except DAMAGE:
        return None
    return array if array.shape == shape and array.dtype == np.uint8 else None


def _fill(pictures: Pictures, held: NDArray[np.uint8], start: int) -> None:
    for index in range(start, min(start + _CHUNK, len(pictures))):
        held[index] = pictures[index].numpy()


_SHARED: list[tuple[Pictures, Path]] = []  # in a process that decodes: what, and where to


def _share(pictures: Pictures, path: Path) -> None:
    _SHARED[:] = [(pictures, path)]
    # A training's own handler, which waits for the end of a step, would keep the process from ever ending.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the others
    torch.set_num_threads(1)


def _fill_file(start: int) -> None:
    pictures, path = _SHARED[0]
    _fill(pictures, np.load(path, mmap_mode="r+"), start)


def fitted(image: Array, side: int) -> Array:
    """(H, W, 3) -> (side, side, 3): the middle square, resized."""
    from PIL import Image

    height, width = image.shape[:2]
    if (height, width) == (side, side):
        return np.array(image)
    short = min(height, width)
    top, left = (height - short) // 2, (width - short) // 2
    box = (left, top, left + short, top + short)
    return np.array(Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR, box=box, reducing_gap=3.0))


class Order:
    """A set's endless order: epochs joined end to end, each a permutation that follows from (seed, epoch)."""

    def __init__(self, length: int, seed: int) -> None:
        self.length, self.seed = length, seed
        self._orders: dict[int, Whole] = {}

    def at(self, positions: Whole) -> tuple[Whole, Whole]:
        """The epochs and the indices at these positions."""
        epochs = positions // self.length
        indices = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            indices[here] = self._order(epoch)[positions[here] % self.length]
        return epochs, indices

    def _order(self, epoch: int) -> Whole:
        if epoch not in self._orders:
            self._orders = {e: order for e, order in self._orders.items() if e == epoch - 1}
            self._orders[epoch] = np.asarray(epoch_order(self.length, self.seed, epoch), np.int64)
        return self._orders[epoch]


def batches(pictures: Pictures, wanted: Iterator[Whole], workers: int, device: torch.device) -> Iterator[Tensor]:
    """The pictures of each batch of indices, in order; decoded by worker processes when they are not held."""
    if pictures.held is not None or workers == 0:
        for indices in wanted:
            yield pictures.take(indices, device)
        return
    orders = (indices.tolist() for indices in wanted)
    loader = WorkerBatches(pictures, device, workers, batch_sampler=orders, prefetch_factor=3)
    for images in shielding_workers(iter(loader)):
        yield images.to(device, non_blocking=True)
