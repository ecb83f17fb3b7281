"""Means, spreads and paired differences of runs' scores."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]  # what a run's result.json holds
Pair = tuple[str, int]  # data set and seed: what two runs must share to be compared
_LEVEL = 0.95  # of the interval a difference must leave zero out of


@dataclasses.dataclass(frozen=True)
class Column:
    heading: str
    weights: str  # "last": as training ended; "best": selected on the validation images
    score: str
    scale: float = 100.0
    digits: int = 2

    def of(self, result: Result) -> float | None:
        """`F1 car` is the score F1 of the class car."""
        scores = result[self.weights]
        name, _, of_class = self.score.partition(" ")
        value = scores[self.score] if self.score in scores else (scores.get(name) or {}).get(of_class)
        return None if value is None else self.scale * float(value)


MIOU, BF = Column("mIoU", "last", "mIoU"), Column("BF@3px", "last", "BF@3px")
BEST = Column("best mIoU", "best", "mIoU")


def columns(scores: Sequence[str]) -> tuple[Column, ...]:
    """Of the weights as training ended."""
    return tuple(Column(score, "last", score) for score in scores)


def compared(scores: Sequence[str]) -> tuple[Column, ...]:
    """What differences are shown of: mIoU and BF where mIoU is the first of the scores, else all of these."""
    return tuple(c for c in columns(scores) if scores[0] != MIOU.score or c in (MIOU, BF))


@dataclasses.dataclass(frozen=True)
class Summary:
    values: tuple[float, ...]
    mean: float | None
    spread: float | None  # standard deviation, of two or more


@dataclasses.dataclass(frozen=True)
class Difference:
    """Of runs that share seed and data set."""

    mean: float | None
    error: float | None  # standard error of the mean, of two or more
    pairs: int
    clear: bool  # zero lies outside the interval
    interval: tuple[float, float] | None = None  # 95 %, by Student's t


def summarise(results: Sequence[Result], column: Column) -> Summary:
    known = tuple(value for result in results if (value := column.of(result)) is not None)
    mean = statistics.fmean(known) if known else None
    return Summary(known, mean, statistics.stdev(known) if len(known) > 1 else None)


def paired(own: Mapping[Pair, Result], other: Mapping[Pair, Result], column: Column) -> Difference:
    """The mean of own minus other, over what both have."""
    differences = []
    for key in (key for key in own if key in other):
        mine, theirs = column.of(own[key]), column.of(other[key])
        if mine is not None and theirs is not None:
            differences.append(mine - theirs)
    if len(differences) < 2:
        return Difference(differences[0] if differences else None, None, len(differences), False)
    mean, count = statistics.fmean(differences), len(differences)
    error = statistics.stdev(differences) / math.sqrt(count)
    reach = _students_t(count - 1) * error
    return Difference(mean, error, count, abs(mean) > reach, (mean - reach, mean + reach))


def _students_t(freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + _LEVEL) / 2))
