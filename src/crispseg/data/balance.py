"""Choosing which groups of images validate, so that every class is on both sides in about the same share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

_MOST_TRIED = 64  # groups of each side whose exchange is tried at a time: the work stays small for many images
_ROUNDS = 200
_FEW = 12  # groups: all ways to choose some of them are tried
_ABSENT = 10.0  # what a class that is missing on one side costs; a share that is off by 1 costs 1

Amounts = NDArray[np.float64]  # (..., 1 + classes): pixels of the images, and labelled pixels of each class


def balanced(val: set[str], order: Sequence[str], amounts: Mapping[str, Sequence[float]], share: float) -> set[str]:
    """`val` with groups added, removed and exchanged for as long as that brings its amounts nearer to `share` of all.

    `order` has all groups, in the order in which they are tried; the result depends on nothing else.
    """
    table = np.array([amounts[group] for group in order], np.float64)  # (groups, 1 + classes)
    inside = np.array([group in val for group in order])
    judge = _Judge(table, share)
    if len(order) <= _FEW:
        return {group for group, held in zip(order, _best_of_all(table, judge), strict=True) if held}
    best, idle = judge.cost(table[inside].sum(0)), 0
    for turn in range(_ROUNDS):
        moves = _Moves(table, inside, turn)
        costs = judge.cost(moves.sums)
        chosen = int(costs.argmin())
        idle = idle + 1 if costs[chosen] > best - 1e-9 else 0
        if not idle:
            best = costs[chosen]
            inside[moves.groups(chosen)] ^= True
        elif idle > len(order) // _MOST_TRIED:  # all groups were tried since the last change
            break
    return {group for group, held in zip(order, inside, strict=True) if held}


def _best_of_all(table: Amounts, judge: _Judge) -> NDArray[np.bool_]:
    """The best of all ways to choose some but not all groups; of equals the first."""
    numbers = np.arange(1, 2 ** len(table) - 1)
    ways = (numbers[:, None] >> np.arange(len(table)) & 1).astype(bool)  # (ways, groups)
    chosen: NDArray[np.bool_] = ways[judge.cost(ways.astype(np.float64) @ table).argmin()]
    return chosen


class _Judge:
    """What it costs that validation holds some amounts: how far each class is from its share."""

    def __init__(self, table: Amounts, share: float) -> None:
        self.total, self.share = table.sum(0), share
        self.there = self.total > 0
        self.shared = (table > 0).sum(0) > 1  # in two groups or more, so that both sides can have it

    def cost(self, sums: Amounts) -> NDArray[np.float64]:
        parts = sums[..., self.there] / self.total[self.there]
        apart = np.abs(parts - self.share).mean(-1)
        absent = ((parts <= 0) | (parts >= 1)) & self.shared[self.there]
        return apart + _ABSENT * absent.sum(-1)


class _Moves:
    """Groups to move to the other side (one, or one of each side), and what validation holds after each."""

    def __init__(self, table: Amounts, inside: NDArray[np.bool_], turn: int) -> None:
        self.held, self.free = (_some(np.flatnonzero(side), turn) for side in (inside, ~inside))
        self.alone = (self.free if (~inside).sum() > 1 else []) + (self.held if inside.sum() > 1 else [])
        change = np.where(inside, -1.0, 1.0)[:, None] * table
        exchanged = change[self.held][:, None] + change[self.free][None]  # (held, free, 1 + classes)
        changes = np.concatenate([change[self.alone], exchanged.reshape(-1, table.shape[1])])
        self.sums: Amounts = table[inside].sum(0) + changes

    def groups(self, move: int) -> list[int]:
        if move < len(self.alone):
            return [self.alone[move]]
        i, j = divmod(move - len(self.alone), len(self.free))
        return [self.held[i], self.free[j]]


def _some(places: NDArray[np.intp], turn: int) -> list[int]:
    """At most _MOST_TRIED of them, others each turn."""
    return np.roll(places, -turn * _MOST_TRIED)[:_MOST_TRIED].tolist()
