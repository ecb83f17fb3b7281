"""The analysis's tables, made once and written as Markdown, HTML and (the spectra, image by image) CSV."""

from __future__ import annotations

import csv
import io

import numpy as np
from numpy.typing import NDArray

from crispseg.analysis.gates import GATES, BlockGates, BlockTemperatures, Spread
from crispseg.analysis.prototypes import USED
from crispseg.analysis.result import AS_TRAINED, AT_MEAN, Analysis, Variant, deviation
from crispseg.analysis.watching import PLACES
from crispseg.evaluate.tables import Table
from crispseg.metrics.words import percent
from crispseg.reading import plain_cell

SCORES, MISTAKES, USE, BETWEEN = "Right and wrong", "Largest mistakes", "Use of prototypes", "Classes apart"
LIVELINESS = "How much the mixers vary"
SPECTRA = {place: f"Spectral ratio: {what}" for place, what in PLACES.items()}
_GATE_HEADER = (
    *("block", "1e-4 + lambda", "omega", "s", "t", "gain"),
    *(f"{name} travelled" for name in ("lambda", "omega", "s", "t")),
)


def all_tables(analysis: Analysis) -> list[Table]:
    tables = [scores(analysis), mistakes(analysis)]
    tables += [table for place in PLACES if (table := spectrum(analysis, place)) is not None]
    tables += [liveliness(analysis)] if analysis.liveliness else []
    tables += [gates(label, blocks) for label, blocks in analysis.gates.items()]
    tables += [temperatures(label, blocks) for label, blocks in analysis.temperatures.items()]
    return tables + prototype_tables(analysis)


def scores(analysis: Analysis) -> Table:
    scored = analysis.conditions.protocol.scored_ids
    figures = {label: variant.mistakes.figures(scored) for label, variant in analysis.variants.items()}
    rows = tuple((_shown(analysis.variants[label]), *map(percent, row.values())) for label, row in figures.items())
    note = (
        "In percent, over these windows. Wrong in the band: of the pixels near a true boundary; errors in the band: "
        "of all wrong pixels."
    )
    return Table(SCORES, ("variant", *figures[AS_TRAINED]), rows, note)


def mistakes(analysis: Analysis) -> Table:
    classes, own = analysis.conditions.protocol.classes, analysis.variants[AS_TRAINED].mistakes
    totals = {label: (v.mistakes.all, max(int(v.mistakes.all.sum()), 1)) for label, v in analysis.variants.items()}
    rows = tuple(
        (
            f"{classes[true]} taken for {classes[predicted]}",
            *(percent(counts[true, predicted] / total) for counts, total in totals.values()),
            percent(in_band / pixels),
        )
        for true, predicted, pixels, in_band in own.largest()
    )
    header = ("mistake", *analysis.variants, "of it in the band")
    return Table(MISTAKES, header, rows, "Percent of all labelled pixels; last column: percent of the first.")


def spectrum(analysis: Analysis, place: str) -> Table | None:
    """Mean and standard deviation per block and variant, and how `as trained` compares with each other one."""
    found: dict[str, dict[str, NDArray[np.float64]]] = {
        label: getattr(v.spectrum, place) for label, v in analysis.variants.items() if v.spectrum is not None
    }
    if not found:
        return None
    own = found.get(AS_TRAINED, {})
    others = [label for label in found if label != AS_TRAINED and own]
    rows = []
    for block in dict.fromkeys(name for values in found.values() for name in values):
        cells = [_mean_spread(values.get(block)) for values in found.values()]
        cells += [_change(own.get(block), found[label].get(block)) for label in others]
        rows.append((block, *cells))
    note = (
        "E_high / E_low: mean ± standard deviation over images. Over ...: mean change of `as trained` against that "
        "variant on the same image, and on how many images it is higher."
    )
    return Table(SPECTRA[place], ("block", *found, *(f"over {label}" for label in others)), tuple(rows), note)


def liveliness(analysis: Analysis) -> Table:
    found = analysis.liveliness
    blocks = dict.fromkeys(block for ratios in found.values() for block in ratios)
    rows = tuple((block, *(_ratio(ratios.get(block)) for ratios in found.values())) for block in blocks)
    note = (
        "Variance over tokens of the fusion's output y^, before calibration, over that of the skip D V, mean "
        "over images. "
        f"Far below 1 the mixer adds the same to every token: the row `{AT_MEAN}` of the first table says what is lost "
        "when it adds just that."
    )
    return Table(LIVELINESS, ("block", *(f"var(y^) / var(D V), {label}" for label in found)), rows, note)


def gates(label: str, blocks: tuple[BlockGates, ...]) -> Table:
    rows = tuple(
        (b.block, *map(_range, b.gates.values()), _range(b.gain), *(_distance(b.distances[key]) for key in GATES))
        for b in blocks
    )
    note = (
        "As they act: mean (lowest to highest) over heads or channels; they start at 0.01. Gain is (1 + t)(1 + omega) "
        "/ (1 + s): how much what varies is raised over the mean of the map. Travelled: mean distance of that gate's "
        "parameters from their start."
    )
    return Table(f"Gates: {label}", _GATE_HEADER, rows, note)


def temperatures(label: str, blocks: tuple[BlockTemperatures, ...]) -> Table:
    rows = tuple((b.block, _range(b.keys), _range(b.queries)) for b in blocks)
    note = (
        "Of selective fusion: mean (lowest to highest) over a token's numbers; they start at "
        f"{blocks[0].start:g}. At 0 attention is uniform, and the larger they grow, the more a token selects."
    )
    return Table(f"Temperatures: {label}", ("block", "keys", "queries"), rows, note)


def prototype_tables(analysis: Analysis) -> list[Table]:
    found, classes = analysis.prototypes, analysis.conditions.protocol.classes
    if found is None:
        return []
    count = found.pixels.shape[1]
    shares, entropy, steadiness = found.shares, found.entropy, found.steadiness.mean(1)
    rows = tuple(
        (
            name,
            *map(percent, shares[i]),
            f"{found.used[i]} of {count}",
            _plain(entropy[i]),
            _plain(found.orthogonality[i]),
            _plain(steadiness[i]),
        )
        for i, name in enumerate(classes)
    )
    numbers = tuple(f"prototype {k + 1}" for k in range(count))
    header = ("predicted class", *numbers, "used", "entropy", "mean |cosine|", "steadiness")
    note = (
        f"Percent of the class's pixels won by each; used: at least {USED:.0%}. Entropy: 1 if all are used alike. Mean "
        "|cosine| of two prototypes of the class: 0 if orthogonal. Steadiness: 1 if the same in every image."
    )
    between = tuple((name, *map(_plain, found.class_cosines[i])) for i, name in enumerate(classes))
    apart = f"Cosines of the classes' mean prototypes, mean over images. Margin reached: {_plain(found.margin)} "
    apart += "(one minus the largest of two different classes in any image)."
    return [Table(USE, header, rows, note), Table(BETWEEN, ("class", *classes), between, apart)]


def spectrum_csv(analysis: Analysis) -> str:
    """Every ratio by itself; each row says what it was made under."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(("variant", "source", "place", "block", "image", "ratio", "conditions"))
    for variant in analysis.variants.values():
        for place in PLACES if variant.spectrum is not None else ():
            for block, values in getattr(variant.spectrum, place).items():
                for name, value in zip(analysis.names, values, strict=True):
                    row = (variant.label, variant.source, place, block, name, f"{value:.8g}", analysis.conditions.line)
                    writer.writerow(map(plain_cell, row))
    return buffer.getvalue()


def _shown(variant: Variant) -> str:
    return f"{variant.label} ({variant.source})"


def _mean_spread(values: NDArray[np.float64] | None) -> str:
    if values is None:
        return "-"
    spread = deviation(values)
    return f"{values.mean():.5f}" + ("" if np.isnan(spread) else f" ± {spread:.5f}")


def _change(own: NDArray[np.float64] | None, other: NDArray[np.float64] | None) -> str:
    if own is None or other is None:
        return "-"
    with np.errstate(divide="ignore", invalid="ignore"):
        change = float((own / other - 1).mean())
    shown = f"{100 * change:+.1f} %" if np.isfinite(change) else "-"
    return f"{shown}, {int((own > other).sum())}/{len(own)}"


def _range(spread: Spread | None) -> str:
    return "off" if spread is None else f"{spread.mean:.4f} ({spread.low:.4f} to {spread.high:.4f})"


def _distance(value: float | None) -> str:
    return "off" if value is None else f"{value:.4f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _plain(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.3f}"
