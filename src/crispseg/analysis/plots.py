"""Plots of the numbers: figure 1(a), the gates, the prototypes. Needs matplotlib, the extra `plots`."""

from __future__ import annotations

import importlib.util
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.analysis.gates import Spread
from crispseg.analysis.result import AS_TRAINED, Analysis, deviation
from crispseg.analysis.watching import PLACES

MISSING = "There are no plots: matplotlib is not installed (pip install 'crispseg[plots]')."
_GATE_TITLES = {"residual": "1e-4 + λ", "omega": "ω", "s": "s", "t": "t"}


def draw_plots(analysis: Analysis) -> dict[str, bytes]:
    """PNG files by name; none where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return {}
    plots = {}
    if any(variant.spectrum for variant in analysis.variants.values()):
        plots["spectrum.png"] = _spectrum(analysis)
    if analysis.gates:
        plots["gates.png"] = _gates(analysis)
    if analysis.prototypes is not None:
        plots["prototypes.png"] = _prototypes(analysis)
    return plots


def _spectrum(analysis: Analysis) -> bytes:
    """Figure 1(a): the ratio from block to block, mean and standard deviation over images, by variant; then the
    change of `as trained` against each other variant, image by image, which shows what the spread would hide."""
    figure = _figure(13, 4)
    panels = figure.subplots(1, 3)
    for panel, (place, what) in zip(panels, PLACES.items(), strict=False):
        blocks = _blocks(analysis, place)
        for number, variant in enumerate(analysis.variants.values()):
            found = getattr(variant.spectrum, place, {})
            label = f"{variant.label} ({_short(variant.source)})"
            _curve(panel, [blocks.index(name) for name in found], list(found.values()), number, label)
        _by_block(panel, blocks)
        panel.set_ylim(bottom=0)
        panel.set_title(what, fontsize="medium")
        panel.set_ylabel("E_high / E_low")
    panels[1].legend(fontsize="small")
    _changes(panels[2], analysis)
    return _png(figure)


def _changes(panel: Any, analysis: Analysis) -> None:
    own = getattr(analysis.variants[AS_TRAINED].spectrum, "mixer", {})
    blocks = _blocks(analysis, "mixer")
    panel.axhline(0, color="grey", linewidth=1)
    for number, (label, variant) in enumerate(analysis.variants.items()):
        other = getattr(variant.spectrum, "mixer", {})
        shared = [name for name in own if name in other] if label != AS_TRAINED else []
        changes = [100 * (own[name] / other[name] - 1) for name in shared]
        _curve(panel, [blocks.index(name) for name in shared], changes, number, f"over {label}")
    _by_block(panel, blocks)
    panel.set_title("change by image, mixer", fontsize="medium")
    panel.set_yscale("symlog", linthresh=0.1)  # gates off changes little, another model much
    panel.set_ylabel("%")
    if panel.get_legend_handles_labels()[0]:  # no curve where only the model of --against has blocks
        panel.legend(fontsize="small")


def _blocks(analysis: Analysis, place: str) -> list[str]:
    """The blocks of all variants; models may differ in depth."""
    names = [name for variant in analysis.variants.values() for name in getattr(variant.spectrum, place, {})]
    return sorted(dict.fromkeys(names), key=lambda name: [int(word) for word in name.split() if word.isdecimal()])


def _curve(panel: Any, x: list[int], values: list[NDArray[np.float64]], number: int, label: str) -> None:
    """Mean and standard deviation over images; later curves are dashed, so that an equal one below is seen."""
    if not x:
        return
    mean = np.array([each.mean() for each in values])
    spread = np.nan_to_num([deviation(each) for each in values])
    style = {"color": f"C{number}", "linestyle": "-" if number == 0 else "--"}
    panel.plot(x, mean, marker="o", markersize=7 - 2 * number, label=label, **style)
    panel.fill_between(x, mean - spread, mean + spread, color=f"C{number}", alpha=0.15, linewidth=0)


def _gates(analysis: Analysis) -> bytes:
    figure = _figure(11, 2 + 2.2 * len(analysis.gates))
    grid = figure.subplots(len(analysis.gates), 5, squeeze=False)
    for row, (label, blocks) in zip(grid, analysis.gates.items(), strict=True):
        for panel, (gate, title) in zip(row, _GATE_TITLES.items(), strict=False):
            _ranges(panel, [block.gates[gate] for block in blocks])
            panel.set_title(title, fontsize="medium")
        _ranges(row[4], [block.gain for block in blocks])
        row[4].set_title("(1+t)(1+ω)/(1+s)", fontsize="medium")
        for panel in row:
            _by_block(panel, [block.block for block in blocks], 5)
        row[0].set_ylabel(label)
    return _png(figure)


def _ranges(panel: Any, spreads: list[Spread | None]) -> None:
    for x, spread in enumerate(spreads):
        if spread is not None:
            panel.plot([x, x], [spread.low, spread.high], color="C0", alpha=0.4, linewidth=3)
            panel.plot([x], [spread.mean], marker="o", color="C0", markersize=4)


def _prototypes(analysis: Analysis) -> bytes:
    found, classes = analysis.prototypes, analysis.conditions.protocol.classes
    assert found is not None
    count = found.pixels.shape[1]
    figure = _figure(11, max(3.5, 1.5 + 0.22 * len(classes) * count))
    use, cosines = figure.subplots(1, 2, width_ratios=(1, 1.3))
    start = np.zeros(len(classes))
    for k, shares in enumerate(np.nan_to_num(found.shares).T):
        use.barh(range(len(classes)), 100 * shares, left=100 * start, label=f"prototype {k + 1}", color=f"C{k}")
        start += shares
    use.set_yticks(range(len(classes)), classes)
    use.invert_yaxis()
    use.set_xlim(0, 100)
    use.set_xlabel("share of the class's pixels, %")
    use.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=min(count, 5))
    shown = cosines.imshow(found.cosines, vmin=-1, vmax=1, cmap="RdBu_r")
    names = [f"{name} {k + 1}" if count > 1 else name for name in classes for k in range(count)]
    cosines.set_yticks(range(len(names)), names, fontsize="x-small")
    cosines.set_xticks([])
    cosines.set_title("cosines of prototypes", fontsize="medium")
    figure.colorbar(shown, ax=cosines, shrink=0.8)
    return _png(figure)


def _by_block(panel: Any, blocks: list[str], most: int = 12) -> None:
    """Blocks as 1.1, 1.2, ..., at most so many of them named."""
    names = [name.replace("stage ", "").replace(" block ", ".") for name in blocks]
    step = -(-len(names) // most)
    panel.set_xticks(range(0, len(names), step), names[::step], fontsize="x-small")
    panel.set_xlabel("stage.block", fontsize="small")


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # without pyplot: no display, no state

    return Figure(figsize=(width, height), layout="constrained")


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _short(name: str, letters: int = 32) -> str:
    return name if len(name) <= letters else f"...{name[-letters + 3 :]}"
