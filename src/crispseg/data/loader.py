"""Batches in an order that depends on (seed, step) alone, whatever the number of workers or processes."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from crispseg.data.dataset import Key, Sample, SegmentationDataset
from crispseg.errors import UserError


def epoch_order(length: int, seed: int, epoch: int) -> list[int]:
    """The permutation of an epoch's samples; every process works out the same."""
    keys = np.random.Philox(key=[seed, epoch]).random_raw(length)
    order: list[int] = np.argsort(keys, kind="stable").tolist()
    return order


class StepSampler(Sampler[list[tuple[int, int]]]):
    """Batches of (epoch, index) from `start` up to `steps`, epochs joined end to end.

    A step takes the next batch_size * world samples of the joined orders; process `rank` takes every world-th of
    them, starting at its own number, so the processes' batches together are the batch of a single process.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        steps: int,
        *,
        seed: int = 0,
        start: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if length < 1 or batch_size < 1:
            raise UserError(f"cannot make batches of {batch_size} from {length} samples")
        self.length, self.batch_size, self.steps = length, batch_size, steps
        self.seed, self.start, self.rank, self.world = seed, start, rank, world

    def __len__(self) -> int:
        return max(self.steps - self.start, 0)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        together = self.batch_size * self.world
        epoch, order = -1, list[int]()
        for step in range(self.start, self.steps):
            batch = []
            for position in range(step * together + self.rank, (step + 1) * together, self.world):
                if position // self.length != epoch:
                    epoch = position // self.length
                    order = epoch_order(self.length, self.seed, epoch)
                batch.append((epoch, order[position % self.length]))
            yield batch


class Loader:
    """Iterates over (images float32, masks int64, names), finished on `device`; workers send them compact."""

    def __init__(self, dataset: SegmentationDataset, device: torch.device | str, workers: int, **options: Any) -> None:
        self.dataset, self.device = dataset, torch.device(device)
        if workers:
            # Forked workers share the decoded images with this process; elsewhere each would hold its own copy.
            context = multiprocessing.get_context("fork") if sys.platform == "linux" else None
            options |= {"num_workers": workers, "multiprocessing_context": context}
        self._batches = DataLoader(_Compact(dataset), pin_memory=self.device.type == "cuda", **options)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, tuple[str, ...]]]:
        for images, masks, names in self._batches:
            yield *self.dataset.finish(images, masks, self.device), tuple(names)


class _Compact(Dataset[Sample]):
    def __init__(self, dataset: SegmentationDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: Key) -> Sample:
        return self.dataset.compact(key)


def make_loader(
    dataset: SegmentationDataset,
    batch_size: int,
    steps: int,
    *,
    seed: int = 0,
    start_step: int = 0,
    rank: int = 0,
    world: int = 1,
    workers: int = 0,
    prefetch: int = 4,
    device: torch.device | str = "cpu",
) -> Loader:
    """One pass over the training steps start_step .. steps - 1; `batch_size` is per process.

    Started again with another `start_step` it gives the batches that were still to come. For a CUDA device the
    batches go through pinned memory and are turned into numbers there.
    """
    dataset.preload()
    sampler = StepSampler(len(dataset), batch_size, steps, seed=seed, start=start_step, rank=rank, world=world)
    ahead = {"prefetch_factor": prefetch} if workers else {}
    return Loader(dataset, device, workers, batch_sampler=sampler, **ahead)


def evaluation_loader(
    dataset: SegmentationDataset,
    *,
    rank: int = 0,
    world: int = 1,
    workers: int = 0,
    device: torch.device | str = "cpu",
) -> Loader:
    """Whole images one by one, in order; process `rank` of `world` takes every world-th."""
    if workers:
        dataset.preload()
    return Loader(dataset, device, workers, batch_size=1, sampler=range(rank, len(dataset), world))
