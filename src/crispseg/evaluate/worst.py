"""The windows with the largest share of wrong pixels, kept as they go by."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.data.classes import IGNORE

_SIDE = 384  # about; images are cut into equal parts near to it
_FEW = 0.1  # a window with fewer labels than this share of its pixels counts as if it had so many


@dataclasses.dataclass(frozen=True)
class WorstWindow:
    index: int  # of the image
    name: str
    top: int
    left: int
    wrong: int  # pixels
    labelled: int
    badness: float
    image: NDArray[Any]  # (h, w, bands)
    truth: NDArray[np.uint8]  # (h, w)
    prediction: NDArray[np.uint8]

    @property
    def share(self) -> float:
        return self.wrong / max(self.labelled, 1)

    @property
    def order(self) -> tuple[float, int, int, int]:
        """Sorts the worst first, and alike in any number of processes."""
        return (-self.badness, self.index, self.top, self.left)


class WorstWindows:
    """Keeps the `limit` worst of all windows it was shown."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.kept: list[WorstWindow] = []

    def look(
        self, index: int, name: str, image: NDArray[Any], truth: NDArray[np.uint8], prediction: NDArray[np.uint8]
    ) -> None:
        for rows, columns in itertools.product(*map(parts, truth.shape)) if self.limit else ():
            part = truth[rows, columns]
            labels = part != IGNORE
            labelled = int(labels.sum())
            wrong = int(((part != prediction[rows, columns]) & labels).sum())
            badness = wrong / max(labelled, _FEW * part.size)
            if wrong == 0 or (len(self.kept) == self.limit and badness <= self.kept[-1].badness):
                continue
            crops = (np.array(array[rows, columns]) for array in (image, truth, prediction))
            window = WorstWindow(index, name, rows.start, columns.start, wrong, labelled, badness, *crops)
            self.kept = worst_of([*self.kept, window], self.limit)


def worst_of(windows: Iterable[WorstWindow], limit: int) -> list[WorstWindow]:
    return sorted(windows, key=lambda window: window.order)[:limit]


def parts(length: int) -> Iterator[slice]:
    """Equal parts of an axis, about _SIDE long; a short axis is one part."""
    count = max(1, round(length / _SIDE))
    for start, stop in itertools.pairwise(length * i // count for i in range(count + 1)):
        yield slice(start, stop)
