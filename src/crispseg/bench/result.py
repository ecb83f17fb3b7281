"""What a run leaves behind, and its JSON. docs/how-to/bench.md explains the fields; some are added, none renamed."""

from __future__ import annotations

import abc
import dataclasses
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

from crispseg import config as configs
from crispseg.errors import UserError
from crispseg.files import write_json
from crispseg.reading import read_json

FORMAT = 1
Status = Literal["ok", "wrong", "failed", "out of memory"]


@dataclasses.dataclass(frozen=True)
class Latency:
    """Of one run, in milliseconds, over `runs` runs. iqr: third quartile minus first."""

    median: float
    iqr: float
    runs: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell(abc.ABC):
    """What one subject did at one size, batch, precision and mode. There is no time unless status is ok."""

    size: int
    batch: int
    precision: str
    mode: str
    device: str
    status: Status = "ok"
    reason: str = ""  # why not ok
    latency_ms: Latency | None = None
    peak_bytes: int | None = None
    peak_source: str = ""
    check_error: float | None = None
    check_bound: float
    check_contrast: float | None = None
    setup_seconds: float | None = None

    @property
    @abc.abstractmethod
    def subject(self) -> str:
        """Whose cell this is."""

    @property
    def title(self) -> str:
        return f"{self.subject} {self.size} px, batch {self.batch}, {self.precision}, {self.mode}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelCell(Cell):
    model: str
    throughput: float | None = None  # images per second
    macs: int | None = None  # of one image
    parameters: int | None = None

    @property
    def subject(self) -> str:
        return self.model


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorCell(Cell):
    backend: str
    direction: str  # forward, or forward+backward
    stage: int
    tokens: int  # of one image
    bytes: int  # if each tensor is moved once
    gigabytes_per_second: float | None = None

    @property
    def subject(self) -> str:
        return self.backend

    @property
    def title(self) -> str:
        return f"{super().title}, stage {self.stage}, {self.direction}"


@dataclasses.dataclass(frozen=True)
class PerPixel:
    """A model cell's time and memory per pixel, and both as multiples of those at `base_size`."""

    model: str
    precision: str
    mode: str
    size: int
    batch: int
    base_size: int
    nanoseconds: float
    bytes: float | None
    time_ratio: float | None
    memory_ratio: float | None
    linear: bool | None


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A model that could not take part."""

    model: str
    why: str  # what to install, or the error


@dataclasses.dataclass(frozen=True)
class Result:
    kind: Literal["models", "scaling", "ops"]
    environment: dict[str, Any]
    settings: dict[str, Any]
    cells: tuple[Cell, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    operator_check: dict[str, float | None] = dataclasses.field(default_factory=dict)
    per_pixel: tuple[PerPixel, ...] = ()
    command: str = ""
    format: int = FORMAT

    @property
    def wrong(self) -> bool:
        """Whether any output was not what it should be."""
        return any(cell.status == "wrong" for cell in self.cells)


_CELLS: dict[str, type[Cell]] = {"models": ModelCell, "scaling": ModelCell, "ops": OperatorCell}

C = TypeVar("C", bound=Cell)


def of_type(cells: tuple[Cell, ...], kind: type[C]) -> list[C]:
    return [cell for cell in cells if isinstance(cell, kind)]


class _Head(TypedDict):
    kind: str
    format: int
    cells: list[dict[str, Any]]


def write(result: Result, path: str | Path) -> None:
    write_json(path, configs.to_dict(result))


def read(path: str | Path) -> Result:
    """The result in a JSON file that `write` wrote."""
    values = read_json(path, "result of `crisp bench`")
    try:
        head: _Head = configs.checked(_Head, values, "it")
    except UserError as error:
        raise UserError(f"{path} is not a result of `crisp bench`: {error}") from error
    kind, version = head["kind"], head["format"]
    if version > FORMAT or kind not in _CELLS:
        raise UserError(f"{path} was written by a newer crispseg (format {version}, kind {kind!r}); upgrade crispseg")
    cells = tuple(configs.build(_CELLS[kind], cell, "cells.") for cell in values.pop("cells"))
    return dataclasses.replace(configs.build(Result, values), cells=cells)
