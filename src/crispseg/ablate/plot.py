"""Accuracy against latency. Needs matplotlib, the extra `plots`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from crispseg.bench.plot import MISSING, NOTHING
from crispseg.files import replacing

# Places of a label about its point, in points, best first.
_OFFSETS = [(x, y) for y in (0, 11, -11, 22, -22, 33, -33, 44, -44, 55, -55) for x in (7, -7)]


class Point(NamedTuple):
    name: str
    latency: float
    score: float
    spread: float | None
    highlighted: bool


def draw(points: Sequence[Point], across: str, up: str, path: Path) -> str:
    """Write a PNG. Gives "", or why there is none."""
    if importlib.util.find_spec("matplotlib") is None:
        return MISSING
    if not points:
        return NOTHING
    from matplotlib.figure import Figure  # without pyplot: no display, no state

    figure = Figure(figsize=(8, 5.5), layout="constrained")
    panel = figure.subplots()
    for point in points:
        shape, size, colour = ("*", 13, "C3") if point.highlighted else ("o", 6, "C0")
        panel.errorbar(
            point.latency, point.score, point.spread, fmt=shape, markersize=size, color=colour, capsize=3, lw=1
        )
    panel.set_xscale("log")
    _plain_ticks(panel)
    panel.margins(0.2, 0.1)
    panel.grid(alpha=0.3)
    panel.set_xlabel(across)
    panel.set_ylabel(up)
    _label(points, panel, figure)
    with replacing(path) as aside:
        figure.savefig(aside, format="png", dpi=120)
    return ""


def _plain_ticks(panel: Any) -> None:
    """1, 1.5, 2, 3, 5 ... instead of powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    panel.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_formatter(NullFormatter())


def _label(points: Sequence[Point], panel: Any, figure: Any) -> None:
    """Each name beside its point, at the first place where it covers no other name, no point and no bar."""
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()
    taken = []
    for point in points:
        ends = [(point.latency, point.score + sign * (point.spread or 0.0)) for sign in (-1, 1)]
        taken.append(Bbox(panel.transData.transform(ends)).padded(6))
    for point in sorted(points, key=lambda point: not point.highlighted):
        for x, y in _OFFSETS:
            text = panel.annotate(
                point.name,
                (point.latency, point.score),
                (x, y),
                textcoords="offset points",
                ha="left" if x > 0 else "right",
                va="center",
                fontsize="small",
                fontweight="bold" if point.highlighted else "normal",
            )
            box = text.get_window_extent()
            inside = panel.bbox.x0 <= box.x0 and box.x1 <= panel.bbox.x1
            if inside and not any(box.overlaps(other) for other in taken):
                break
            text.remove()
        else:
            panel.annotate(point.name, (point.latency, point.score), (7, 0), textcoords="offset points")
        taken.append(box)
