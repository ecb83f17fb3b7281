"""Batches of several sets: which pictures a step sees, how they are changed, and in which order they lie."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from crispseg.errors import UserError
from crispseg.pretrain.changes import Changes, apply_changes, plan_changes
from crispseg.pretrain.config import PretrainConfig, SetConfig
from crispseg.pretrain.draws import Whole
from crispseg.pretrain.mixing import apply_mix, plan_mix
from crispseg.pretrain.pictures import HELD, Order, Pictures, batches
from crispseg.pretrain.sources import open_source
from crispseg.pretrain.step import Batch
from crispseg.train.distributed import Processes

_SIDE, _SHARD_SIDE = 256, 64


@dataclasses.dataclass
class LearningSet:
    """One set of a run, opened."""

    config: SetConfig
    name: str
    training: Pictures
    held_back: Pictures | None  # for scores
    count: int = 0  # pictures in each step's batch, over all processes

    @property
    def labelled(self) -> bool:
        return bool(self.training.classes)

    @property
    def parts(self) -> list[Pictures]:
        return [self.training, *([self.held_back] if self.held_back is not None else [])]


def open_sets(config: PretrainConfig) -> list[LearningSet]:
    """All sets, under names of their own."""
    opened: list[LearningSet] = []
    for one in config.sets:
        root = Path(one.path)
        side = one.side or (_SHARD_SIDE if any(root.glob("train*.npz")) else _SIDE)
        training, held_back = open_source(root, one.labels, side)
        if len(training) < 2:
            raise UserError(f"{root} has {len(training)} picture(s) to learn from; at least two are needed")
        name = one.name or root.resolve().name
        if name in [other.name for other in opened]:
            raise UserError(f"two sets are called {name}; give one of them another name")
        if "." in name or hasattr(torch.nn.ModuleDict, name):
            name = name.replace(".", "_") + "_"
        back = Pictures(held_back, side) if held_back is not None else None
        opened.append(LearningSet(one, name, Pictures(training, side), back))
    return opened


def share_out(sets: Sequence[LearningSet], batch_size: int, processes: int) -> None:
    """How many pictures of a batch each set has: by its share, whole pairs for every process."""
    unit = 2 * processes
    total = sum(one.config.share for one in sets)
    for one in sets[:-1]:
        one.count = max(round(batch_size * one.config.share / total / unit), 1) * unit
    rest = batch_size - sum(one.count for one in sets[:-1])
    if rest < unit or rest % unit:
        raise UserError(
            f"batch_size {batch_size} cannot be shared out to {len(sets)} set(s) in pairs on {processes} process(es); "
            f"give a larger multiple of {unit}"
        )
    sets[-1].count = rest


def hold_pictures(sets: Sequence[LearningSet], wanted: bool | None, cache: str | None, device: torch.device) -> None:
    """Decode everything once, where it fits (or always, or never, as told)."""
    everything = [pictures for one in sets for pictures in one.parts]
    if wanted is None:
        wanted = sum(pictures.bytes for pictures in everything) <= HELD
    if wanted:
        for pictures in everything:
            pictures.hold(device, cache)


class Feed:
    """The batches of a run from a step on. A picture's changes follow from (seed, epoch, index) alone.

    Of the sets named in `twice` each picture is seen twice, as neighbours that are changed differently.
    """

    def __init__(
        self, sets: Sequence[LearningSet], config: PretrainConfig, processes: Processes, twice: Sequence[str]
    ) -> None:
        self.sets, self.config, self.processes, self.twice = sets, config, processes, twice
        self.orders = [Order(len(one.training), config.seed) for one in sets]

    @property
    def parts(self) -> dict[str, slice]:
        """Where each set's pictures lie in this process's batch."""
        places, start = {}, 0
        for one in self.sets:
            own = one.count // self.processes.count
            places[one.name] = slice(start, start + own)
            start += own
        return places

    def positions(self, one: LearningSet, step: int) -> Whole:
        """This process's stretch of a set's endless order."""
        own = one.count // self.processes.count
        start = step * one.count + self.processes.rank * own
        return np.arange(start, start + own, dtype=np.int64)

    def from_step(self, first: int, last: int, workers: int, size_at: Sequence[int]) -> Iterator[Batch]:
        streams = [
            batches(one.training, self._indices(number, first, last), workers, self.processes.device)
            for number, one in enumerate(self.sets)
        ]
        for step in range(first, last):
            made = [self._part(number, step, next(stream), size_at[step]) for number, stream in enumerate(streams)]
            yield Batch(*(torch.cat(parts) for parts in zip(*made, strict=True)))

    def _indices(self, number: int, first: int, last: int) -> Iterator[Whole]:
        for step in range(first, last):
            yield self._drawn(number, self.positions(self.sets[number], step))[1]

    def _drawn(self, number: int, positions: Whole) -> tuple[Whole, Whole]:
        """The epoch of each place's changes, and the index of its picture."""
        if self.sets[number].name not in self.twice:
            return self.orders[number].at(positions)
        epochs, indices = self.orders[number].at(positions // 2)
        return 2 * epochs + positions % 2, indices

    def _part(self, number: int, step: int, pictures: Tensor, size: int) -> Batch:
        one, seed, device = self.sets[number], self.config.seed, self.processes.device
        positions = self.positions(one, step)
        epochs, indices = self._drawn(number, positions)
        how = _changes_of(one.config, self.config.changes)
        plan = plan_changes(how, seed, epochs, indices, one.config.aerial).to(device)
        images = apply_changes(pictures, plan, size)
        if one.name in self.twice:
            return Batch(images, _no_labels(len(indices), device), torch.ones(len(indices), device=device))
        mix = plan_mix(how, seed, positions).to(device)
        labels = torch.from_numpy(one.training.labels[indices]).to(device) if one.labelled else None
        chosen = _no_labels(len(indices), device) if labels is None else labels
        return Batch(apply_mix(images, mix), chosen, mix.own)


def _changes_of(one: SetConfig, changes: Changes) -> Changes:
    return changes if one.area is None else dataclasses.replace(changes, area=one.area)


def _no_labels(count: int, device: torch.device) -> Tensor:
    return torch.full((count,), -1, dtype=torch.int64, device=device)
