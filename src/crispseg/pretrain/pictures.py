"""A set's pictures at one size, in 8 bits: decoded when asked for, or once and held in memory or on the device."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from crispseg.data.images import Array
from crispseg.data.loader import epoch_order
from crispseg.pretrain.draws import Whole
from crispseg.pretrain.sources import Source

HELD = 8 << 30  # bytes that all pictures of a run may take, unless told otherwise
_THREADS = 16


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

    def hold(self, device: torch.device) -> None:
        """Decode all of them now, and keep them on the device."""
        held = torch.empty(len(self), 3, self.side, self.side, dtype=torch.uint8)

        def fill(start: int) -> None:
            for index in range(start, min(start + 256, len(self))):
                held[index] = self[index]

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(fill, range(0, len(self), 256)))
        self.held = held.to(device)

    def take(self, indices: Whole, device: torch.device) -> Tensor:
        """(B, 3, side, side) on the device."""
        if self.held is not None:
            return self.held[torch.from_numpy(indices).to(self.held.device)].to(device)
        return torch.stack([self[int(index)] for index in indices]).to(device)


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
    context = multiprocessing.get_context("fork") if sys.platform == "linux" else None
    loader = DataLoader(
        pictures,
        batch_sampler=(indices.tolist() for indices in wanted),
        num_workers=workers,
        multiprocessing_context=context,
        pin_memory=device.type == "cuda",
        prefetch_factor=3,
    )
    for images in loader:
        yield images.to(device, non_blocking=True)
