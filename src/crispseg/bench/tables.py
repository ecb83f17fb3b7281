"""A result as rows of text, for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from crispseg import config as configs
from crispseg.bench.environment import sentence
from crispseg.bench.modes import MODES
from crispseg.bench.result import Cell, ModelCell, OperatorCell, PerPixel, Result, of_type
from crispseg.bench.scaling import verdict
from crispseg.errors import unknown

_TITLES = {"models": "Speed and memory", "scaling": "Time and memory against size", "ops": "The operator alone"}


class Table(NamedTuple):
    header: list[str]
    rows: list[list[str]]


def table(result: Result, relative_to: str = "") -> Table:
    """The result's main table. relative_to: a model (or backend), or `model@mode`, whose ratios are added."""
    if result.kind == "ops":
        header = list(_OPERATOR_COLUMNS)
        rows = [[write(x) for write in _OPERATOR_COLUMNS.values()] for x in of_type(result.cells, OperatorCell)]
    else:
        header = list(_MODEL_COLUMNS)
        rows = [[write(x) for write in _MODEL_COLUMNS.values()] for x in of_type(result.cells, ModelCell)]
    if relative_to:
        check_base(relative_to, (cell.subject for cell in result.cells))
        header += ["time ratio", "memory ratio"]
        for row, cell in zip(rows, result.cells, strict=True):
            row += ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios(cell, result.cells, relative_to)]
    return Table(header, rows)


def check_base(relative_to: str, subjects: Iterable[str]) -> None:
    """A UserError unless `model` or `model@mode` names one of the subjects."""
    name, mode = _base(relative_to)
    subjects = list(dict.fromkeys(subjects))
    if name not in subjects:
        raise unknown("model to compare with", name, subjects)
    if mode and mode not in MODES:
        raise unknown("mode to compare with", mode, MODES)


def values(result: Result, relative_to: str = "") -> dict[str, Any]:
    """The result as plain values; with `relative_to`, each cell has its ratios, null where there are none."""
    whole = configs.to_dict(result)
    if not relative_to:
        return whole
    check_base(relative_to, (cell.subject for cell in result.cells))
    for written, cell in zip(whole["cells"], result.cells, strict=True):
        written["time_ratio"], written["memory_ratio"] = ratios(cell, result.cells, relative_to)
    return {**whole, "relative_to": relative_to}


def ratios(cell: Cell, cells: Sequence[Cell], relative_to: str) -> tuple[float | None, float | None]:
    """A cell's time and memory over the base's, at the same size, batch, precision and the same or the named mode."""
    name, mode = _base(relative_to)
    wanted = _place(cell, mode or cell.mode)
    base = next((other for other in cells if other.subject == name and _place(other, other.mode) == wanted), None)
    if base is None or cell.latency_ms is None or base.latency_ms is None:
        return None, None
    memory = cell.peak_bytes / base.peak_bytes if cell.peak_bytes and base.peak_bytes else None
    return cell.latency_ms.median / base.latency_ms.median, memory


def per_pixel_table(rows: Sequence[PerPixel]) -> Table:
    header = ["model", "precision", "mode", "size", "batch", "ns per pixel", "bytes per pixel"]
    header += ["time ratio", "memory ratio"]
    return Table(
        header,
        [
            [
                row.model,
                row.precision,
                row.mode,
                str(row.size),
                str(row.batch),
                f"{row.nanoseconds:.2f}",
                "" if row.bytes is None else f"{row.bytes:.0f}",
                "" if row.time_ratio is None else f"{row.time_ratio:.2f}",
                "" if row.memory_ratio is None else f"{row.memory_ratio:.2f}",
            ]
            for row in rows
        ],
    )


def remarks(result: Result) -> list[str]:
    """Verdicts, what went wrong, and who could not take part."""
    said = verdict(result.per_pixel)
    for cell in result.cells:
        if cell.status != "ok":
            said.append(f"{cell.title}: {cell.status}: {cell.reason}")
    return said + [f"{skipped.model}: skipped: {skipped.why}" for skipped in result.skipped]


def how(result: Result, relative_to: str = "") -> str:
    """What was done to all, in a sentence or two."""
    chosen = result.settings
    half = "weights and images cast" if chosen["half"] == "weights" else "autocast from float32 weights"
    clock = "device events" if "gpu" in result.environment else "the processor's clock"
    words = [f"Median and interquartile range of {chosen['repeats']} runs by {clock}, taken in turn"]
    if result.kind != "ops":
        words.append(f"{chosen['layout'].replace('_', ' ')}; half precision: {half}")
        words.append("error: relative, against the model's own float32 eager output")
    else:
        words.append("error: relative, against the float64 reference; GB/s: if each tensor is moved once")
    if any(cell.peak_source for cell in result.cells):
        words.append("memory: measured, beyond the weights")
    if relative_to:
        words.append(f"ratios to {relative_to}")
    return "; ".join(words) + "."


def markdown(result: Result, relative_to: str = "") -> str:
    lines = [f"# {_TITLES[result.kind]}", "", sentence(result.environment) + ".", "", how(result, relative_to), ""]
    if result.command:
        lines[2:2] = [f"`{result.command}`", ""]
    tables = [table(result, relative_to)]
    if result.per_pixel:
        tables.insert(0, per_pixel_table(result.per_pixel))
    for header, rows in tables:
        lines += [_line(header), _line(["---"] * len(header)), *map(_line, rows), ""]
    lines += [f"- {remark}" for remark in remarks(result)]
    return "\n".join(lines).rstrip() + "\n"


def shown(result: Result, relative_to: str = "") -> list[Any]:
    """What a person sees: sentences, and tables that rich draws."""
    import rich.table
    from rich.markup import escape

    drawings: list[Any] = [sentence(result.environment), how(result, relative_to)]
    tables = [table(result, relative_to)]
    if result.per_pixel:
        tables.append(per_pixel_table(result.per_pixel))
    for header, rows in tables:
        drawn = rich.table.Table(box=None, pad_edge=False)
        for column in header:
            drawn.add_column(escape(column), justify="left" if column in _TEXT else "right")
        for row in rows:
            drawn.add_row(*map(escape, row))
        drawings.append(drawn)
    return [*drawings, *remarks(result)]


def _time(cell: Cell) -> str:
    if cell.latency_ms is None:
        return cell.status
    return f"{cell.latency_ms.median:.3f} ± {cell.latency_ms.iqr:.3f}"


def _memory(cell: Cell) -> str:
    return "" if cell.peak_bytes is None else f"{cell.peak_bytes / 2**20:.1f}"


def _error(cell: Cell) -> str:
    return "" if cell.check_error is None else f"{cell.check_error:.1e}"


def _throughput(cell: ModelCell) -> str:
    return "" if cell.throughput is None else f"{cell.throughput:.1f}"


def _bandwidth(cell: OperatorCell) -> str:
    return "" if cell.gigabytes_per_second is None else f"{cell.gigabytes_per_second:.1f}"


_TEXT = ("model", "backend", "precision", "mode", "direction")
_MODEL_COLUMNS: dict[str, Callable[[ModelCell], str]] = {
    "model": lambda cell: cell.model,
    "size": lambda cell: str(cell.size),
    "batch": lambda cell: str(cell.batch),
    "precision": lambda cell: cell.precision,
    "mode": lambda cell: cell.mode,
    "latency ms": _time,
    "images/s": _throughput,
    "memory MiB": _memory,
    "GMACs": lambda cell: "" if cell.macs is None else f"{cell.macs / 1e9:.2f}",
    "params M": lambda cell: "" if cell.parameters is None else f"{cell.parameters / 1e6:.2f}",
    "error": _error,
}
_OPERATOR_COLUMNS: dict[str, Callable[[OperatorCell], str]] = {
    "backend": lambda cell: cell.backend,
    "direction": lambda cell: cell.direction,
    "stage": lambda cell: str(cell.stage),
    "size": lambda cell: str(cell.size),
    "tokens": lambda cell: str(cell.tokens),
    "batch": lambda cell: str(cell.batch),
    "precision": lambda cell: cell.precision,
    "mode": lambda cell: cell.mode,
    "latency ms": _time,
    "MB": lambda cell: f"{cell.bytes / 1e6:.1f}",
    "GB/s": _bandwidth,
    "memory MiB": _memory,
    "error": _error,
}


def _base(relative_to: str) -> tuple[str, str]:
    """Model and mode of `model@mode`; the mode is empty where none is named."""
    name, at, mode = relative_to.rpartition("@")
    return (name, mode) if at else (relative_to, "")


def _place(cell: Cell, mode: str) -> tuple[object, ...]:
    """Where a cell stands in the table, whoever's it is."""
    direction = (cell.direction, cell.stage) if isinstance(cell, OperatorCell) else ()
    return (cell.size, cell.batch, cell.precision, mode, *direction)


def _line(values: Sequence[str]) -> str:
    return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"
