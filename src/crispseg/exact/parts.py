"""What a model's parts say about running in bands.

A backbone and a head each declare it by a method `streamed()`, which gives a part as described here; `crispseg.exact`
knows no model by name. A part lists its passes (one sweep each over the rows of a map) and the maps it keeps between
them before anything is computed, so that a run's memory, disk space and time are known beforehand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch import Tensor

from crispseg.exact.resize import Size
from crispseg.exact.stream import Stream

if TYPE_CHECKING:
    from crispseg.exact.context import Context

ReadRows = Callable[[int, int], Tensor]  # (top, bottom) -> the scene's rows (bands, rows, W)


@dataclasses.dataclass(frozen=True)
class Pass:
    """One sweep. Its `floats` (numbers alive at once per pixel of the map, measured to be on the safe side) choose the
    height of its bands; its `macs` (multiply-adds per pixel) are the unit of progress and of the time estimate."""

    name: str
    size: Size
    floats: float
    macs: float
    times: int = 1  # blocks of a stage make the same pass one after another

    @property
    def total_macs(self) -> float:
        return self.macs * self.size[0] * self.size[1] * self.times


class Kept(NamedTuple):
    """A map that is kept between passes, and read or written as a whole `sweeps` times."""

    name: str
    size: Size
    channels: int
    sweeps: int
    brief: bool = False  # gone before the next map is made


class Part(Protocol):
    def passes(self, sizes: Sequence[Size]) -> Iterator[Pass]:
        """For stages of these sizes."""
        ...

    def maps(self, sizes: Sequence[Size]) -> Iterator[Kept]:
        """In the order they are made."""
        ...


class Features(Protocol):
    """The maps that a backbone left, as heads take them."""

    def rows(self, stage: int, top: int, bottom: int) -> Tensor:
        """(1, rows, W, C), normalised."""
        ...

    def close(self) -> None:
        """They are not needed any more."""
        ...


class StreamedBackbone(Part, Protocol):
    in_channels: int

    def run(self, run: Context, read_rows: ReadRows) -> Features: ...


class StreamedHead(Part, Protocol):
    def run(self, run: Context, features: Features) -> Stream:
        """The scene's logits, band by band."""
        ...


class StreamedModel(NamedTuple):
    backbone: StreamedBackbone
    head: StreamedHead

    def passes(self, sizes: Sequence[Size]) -> Iterator[Pass]:
        yield from self.backbone.passes(sizes)
        yield from self.head.passes(sizes)

    def maps(self, sizes: Sequence[Size]) -> Iterator[Kept]:
        yield from self.backbone.maps(sizes)
        yield from self.head.maps(sizes)


def full_size(classes: int) -> int:
    """Floats of a head's result: sixteen pixels of the scene, each kept four times while it is resized."""
    return 16 * 4 * classes
