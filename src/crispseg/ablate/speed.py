"""Speed and memory of a table's models: timed by `crispseg.bench`, kept beside the table, shown as its columns."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from crispseg import bench
from crispseg.ablate.table import Row, Speed, Table, row_values
from crispseg.bench.environment import sentence
from crispseg.bench.result import ModelCell, Result, of_type, write
from crispseg.bench.settings import Settings
from crispseg.errors import UserError
from crispseg.train.config import config_from

Say = Callable[[str], None]


def model_word(table: Table, row: Row) -> str:
    """The row's model as `crisp bench` takes it: NAME or NAME:key=value,..."""
    model = config_from(row_values(table, row, {})).model
    if model.name is None:
        raise UserError(f"table {table.name}, row {row.name}: to be timed, its model must have a name")
    options = ",".join(f"{key}={json.dumps(value)}" for key, value in model.options.items())
    return f"{model.name}:{options}" if options else model.name


def choose_settings(speed: Speed, device: str | None = None) -> Settings:
    """What the table asks for, as far as this machine can."""
    cuda = (device or ("cuda" if torch.cuda.is_available() else "cpu")).startswith("cuda")
    modes = [mode for mode in speed.modes if cuda or mode != "graph"]
    return bench.choose(
        device,
        sizes=list(speed.sizes),
        batches=list(speed.batches if cuda else speed.cpu_batches or speed.batches),
        precisions=[speed.precision or ("bf16" if cuda else "fp32")],
        modes=modes or ["eager"],
        repeats=speed.repeats,
        num_classes=speed.classes,
        in_channels=speed.bands,
    )


def measure(table: Table, path: Path, say: Say) -> Result:
    """Time the models of all rows, batch by batch, but for what the file at `path` has already."""
    assert table.bench is not None
    words = list(dict.fromkeys([*(model_word(table, row) for row in table.rows), *table.bench.beside]))
    settings = choose_settings(table.bench)
    result = bench.read(path) if path.exists() else None
    if result is not None and result.settings["device"] != settings.device:
        say(f"{path} has timings of {result.settings['device']}, which are kept; to time on this machine, remove it")
        return result
    for size in settings.sizes:
        for batch in settings.batches:
            part = dataclasses.replace(settings, sizes=(size,), batches=(batch,))
            if result is not None and _has(result, words, part):
                continue
            found = bench.bench_models(words, part, say)
            result = _joined(result, found, settings)  # written at once: timing may be cut short
            write(result, path)
    assert result is not None
    return result


def _has(result: Result, words: Sequence[str], part: Settings) -> bool:
    """Whether everything of this part was measured already, alike."""
    known = {(c.model, c.size, c.batch, c.precision, c.mode) for c in of_type(result.cells, ModelCell)}
    skipped = {model.model for model in result.skipped}
    (size,), (batch,), (precision,) = part.sizes, part.batches, part.precisions
    alike = result.settings["num_classes"] == part.num_classes and result.settings["in_channels"] == part.in_channels
    return alike and all(
        (word, size, batch, precision, mode) in known for word in words if word not in skipped for mode in part.modes
    )


def _joined(result: Result | None, found: Result, settings: Settings) -> Result:
    """The new cells with those of the other sizes and batches."""
    new = of_type(found.cells, ModelCell)
    places = {(cell.size, cell.batch) for cell in new}
    old = [] if result is None else of_type(result.cells, ModelCell)
    kept = [cell for cell in old if (cell.size, cell.batch) not in places]
    return dataclasses.replace(found, cells=(*kept, *new), settings=dataclasses.asdict(settings))


def columns(result: Result, word: str) -> dict[str, str]:
    """Heading -> text, for one model; the same headings for all."""
    cells = of_type(result.cells, ModelCell)
    own = {_place(cell): cell for cell in cells if cell.model == word}
    first = next(iter(own.values()), None)
    found = {
        "params M": "-" if first is None or first.parameters is None else f"{first.parameters / 1e6:.2f}",
        "GMACs": "-" if first is None or first.macs is None else f"{first.macs / 1e9:.2f}",
    }
    for size, batch, mode in dict.fromkeys(map(_place, cells)):
        place = f"({size} px, batch {batch}, {mode})"
        cell = own.get((size, batch, mode))
        if batch == 1:
            found[f"ms {place}"] = _text(cell, lambda c: f"{c.latency_ms.median:.2f}" if c.latency_ms else "-")
        else:
            found[f"images/s {place}"] = _text(cell, lambda c: f"{c.throughput:.0f}" if c.throughput else "-")
        if mode == result.settings["modes"][0]:
            found[f"MiB {place}"] = _text(cell, lambda c: f"{c.peak_bytes / 2**20:.0f}" if c.peak_bytes else "-")
    return found


def latencies(result: Result) -> tuple[str, Mapping[str, float]]:
    """What is drawn, in words, and per model its milliseconds: the smallest size and batch, the first mode."""
    cells = of_type(result.cells, ModelCell)
    if not cells:
        return "", {}
    size, batch = min((cell.size, cell.batch) for cell in cells)
    mode = result.settings["modes"][0]
    chosen = [cell for cell in cells if _place(cell) == (size, batch, mode) and cell.latency_ms]
    known = {cell.model: cell.latency_ms.median for cell in chosen if cell.latency_ms}
    return f"{size} px, batch {batch}, {cells[0].precision}, {mode}", known


def footnotes(result: Result) -> list[str]:
    """The machine, who could not be timed, and why."""
    cells = of_type(result.cells, ModelCell)
    lines = [f"Timed on {sentence(result.environment)}; {', '.join(result.settings['precisions'])}, medians."]
    lines += [f"- {model.model} was not timed: {model.why}" for model in result.skipped]
    lines += [f"- {cell.title}: {cell.status}, {cell.reason}" for cell in cells if cell.status != "ok"]
    return lines


def _place(cell: ModelCell) -> tuple[int, int, str]:
    return cell.size, cell.batch, cell.mode


def _text(cell: ModelCell | None, number: Callable[[ModelCell], str]) -> str:
    if cell is None:
        return "-"
    return cell.status if cell.status != "ok" else number(cell)
