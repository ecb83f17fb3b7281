"""Where bands are made: in this process or on the machines of a Ray cluster, which give the same bytes; or in this
process with the scene as one image instead of tiles."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Protocol

from crispseg.errors import unknown
from crispseg.predict.work import Work
from crispseg.raster.products import Band

ENGINES = ("local", "ray", "exact")


class Engine(Protocol):
    def bands(self, work: Work, runs: list[range], on_tile: Callable[[], None]) -> Generator[Band]:
        """The bands of some runs of neighbouring strips, in any order; `on_tile` is called once per tile."""
        ...

    def close(self) -> None: ...


def find_engine(name: str, spill: Path | None = None) -> Engine:
    """The engine of this name; `spill` is where the exact engine may keep what does not fit in memory."""
    if name == "local":
        return LocalEngine()
    if name == "ray":
        from crispseg.predict.engines.cluster import RayEngine

        return RayEngine()
    if name == "exact":
        from crispseg.predict.engines.exact import ExactEngine

        return ExactEngine(spill)
    raise unknown("engine", name, ENGINES)


class LocalEngine:
    """This process."""

    def bands(self, work: Work, runs: list[range], on_tile: Callable[[], None]) -> Generator[Band]:
        for strips in runs:
            with contextlib.closing(work.bands(strips, on_tile)) as bands:
                yield from bands

    def close(self) -> None:
        """Nothing was started."""
