"""A picture of a result. Needs matplotlib, the extra `plots`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from crispseg.bench.result import ModelCell, OperatorCell, Result, of_type
from crispseg.files import replacing

MISSING = "no plot: matplotlib is not installed (pip install 'crispseg[plots]')"
NOTHING = "no plot: nothing was timed"


def draw(result: Result, path: str | Path) -> str:
    """Write a PNG. Gives "", or why there is none."""
    if importlib.util.find_spec("matplotlib") is None:
        return MISSING
    if not any(cell.latency_ms for cell in result.cells):
        return NOTHING
    from matplotlib.figure import Figure  # without pyplot: no display, no state

    figure = Figure(layout="constrained")
    {"models": _models, "scaling": _scaling, "ops": _operator}[result.kind](result, figure)
    with replacing(path) as aside:
        figure.savefig(aside, format="png", dpi=120)
    return ""


def _models(result: Result, figure: Any) -> None:
    """A panel per size, batch and precision; a bar per model and mode, with its spread."""
    cells = [cell for cell in of_type(result.cells, ModelCell) if cell.latency_ms]
    places = list(dict.fromkeys((cell.size, cell.batch, cell.precision) for cell in cells))
    modes = list(dict.fromkeys(cell.mode for cell in cells))
    names = list(dict.fromkeys(cell.model for cell in cells))
    figure.set_size_inches(7, max(2.0, len(places) * (0.8 + 0.2 * len(names) * len(modes))))
    panels = figure.subplots(len(places), 1, squeeze=False)[:, 0]
    for panel, place in zip(panels, places, strict=True):
        for cell in cells:
            if (cell.size, cell.batch, cell.precision) != place or cell.latency_ms is None:
                continue
            mode = modes.index(cell.mode)
            row = names.index(cell.model) + 0.8 * ((mode + 0.5) / len(modes) - 0.5)
            half = cell.latency_ms.iqr / 2
            panel.barh(row, cell.latency_ms.median, 0.75 / len(modes), xerr=half, color=f"C{mode}")
        panel.set_yticks(range(len(names)), [_short(name) for name in names])
        panel.invert_yaxis()
        panel.set_title(f"{place[0]} px, batch {place[1]}, {place[2]}", fontsize="medium")
        panel.set_xlabel("latency, ms")
    _legend(panels[0], modes)


def _scaling(result: Result, figure: Any) -> None:
    figure.set_size_inches(9, 4)
    time, memory = figure.subplots(1, 2)
    series: dict[str, list[Any]] = {}
    for row in result.per_pixel:
        series.setdefault(f"{_short(row.model)} {row.precision} {row.mode}", []).append(row)
    for name, rows in series.items():
        sizes = [row.size for row in rows]
        time.plot(sizes, [row.nanoseconds for row in rows], marker="o", label=name)
        memory.plot(sizes, [row.bytes for row in rows], marker="o", label=name)
    for panel, label in ((time, "nanoseconds per pixel"), (memory, "bytes per pixel")):
        _by_size(panel, "image side, px", label)
    time.legend(fontsize="small")


def _operator(result: Result, figure: Any) -> None:
    figure.set_size_inches(9, 4)
    series: dict[tuple[str, str], list[OperatorCell]] = {}
    for cell in of_type(result.cells, OperatorCell):
        if cell.latency_ms:
            name = f"{cell.backend} {cell.mode} {cell.precision}, stage {cell.stage}"
            series.setdefault((cell.direction, name), []).append(cell)
    directions = list(dict.fromkeys(direction for direction, _ in series))
    panels = figure.subplots(1, len(directions), squeeze=False)[0]
    for (direction, name), cells in series.items():
        panel = panels[directions.index(direction)]
        cells = sorted(cells, key=lambda cell: cell.tokens * cell.batch)
        tokens = [cell.tokens * cell.batch for cell in cells]
        panel.plot(tokens, [cell.gigabytes_per_second for cell in cells], marker="o", label=name)
    for panel, direction in zip(panels, directions, strict=True):
        _by_size(panel, "tokens in the batch", f"GB/s, {direction}")
    panels[0].legend(fontsize="small")


def _by_size(panel: Any, across: str, up: str) -> None:
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter("{x:.0f}")
    panel.set_ylim(bottom=0)
    panel.set_xlabel(across)
    panel.set_ylabel(up)


def _legend(panel: Any, modes: list[str]) -> None:
    bars: list[Any] = [panel.barh(0, 0, color=f"C{i}") for i in range(len(modes))]
    panel.legend(bars, modes, fontsize="small")


def _short(name: str, letters: int = 32) -> str:
    """A name with many options would leave no room for the bars."""
    return name if len(name) <= letters else name[: letters - 3] + "..."
