"""Batches in an order that depends on (seed, step) alone, whatever the number of workers or processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

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


class WorkerBatches:
    """torch's DataLoader whose workers hand a UserError on as it is; torch would put its traceback into the text."""

    def __init__(self, dataset: Dataset[Any], device: torch.device, workers: int, **options: Any) -> None:
        if workers:
            # Forked workers share the decoded images with this process; elsewhere each would hold its own copy.
            context = multiprocessing.get_context("fork") if sys.platform == "linux" else None
            options |= {"num_workers": workers, "multiprocessing_context": context, "worker_init_fn": _obey_parent}
        pinned = device.type == "cuda"
        self._loader = DataLoader(_Telling(dataset), pin_memory=pinned, collate_fn=_collate, **options)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            if isinstance(batch, UserError):
                raise batch  # here and not in the loader, whose frames would keep its workers alive with the error
            yield batch


class _Telling(Dataset[Any]):
    """A sample, or the UserError that stood in its way."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, key: Any) -> Any:
        try:
            return self.dataset[key]
        except UserError as error:
            return UserError(str(error))


def _obey_parent(worker: int) -> None:
    """Let the process that started this worker end it, though SIGTERM may be held back here (see
    `train.watch.shielding_workers`): that process waits at its exit for the workers it has sent one."""
    if not hasattr(signal, "sigwaitinfo") or signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, []):
        return

    def listen() -> None:
        while signal.sigwaitinfo([signal.SIGTERM]).si_pid != os.getppid():
            pass
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()


def _collate(samples: list[Any]) -> Any:
    return next((sample for sample in samples if isinstance(sample, UserError)), None) or default_collate(samples)


class Loader:
    """Iterates over (images float32, masks int64, names), finished on `device`; workers send them compact."""

    def __init__(self, dataset: SegmentationDataset, device: torch.device | str, workers: int, **options: Any) -> None:
        self.dataset, self.device = dataset, torch.device(device)
        self._batches = WorkerBatches(_Compact(dataset), self.device, workers, **options)

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
