"""The report's tables, made once and written as Markdown and as HTML."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from crispseg.evaluate.result import Evaluation
from crispseg.metrics.words import percent


@dataclasses.dataclass(frozen=True)
class Table:
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]  # the first column is text, the others are numbers
    note: str = ""

    def markdown(self) -> str:
        lines = [f"## {self.title}", ""]
        if self.note:
            lines += [self.note, ""]
        lines += [_line(self.header), _line(["---", *["---:"] * (len(self.header) - 1)])]
        return "\n".join([*lines, *map(_line, self.rows)]) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def headline(evaluation: Evaluation) -> Table:
    figures = evaluation.headline
    note = "In percent. ECE is the calibration error: the smaller the better."
    return Table("Scores", ("model", *figures), ((evaluation.source, *map(percent, figures.values())),), note)


def per_class(evaluation: Evaluation) -> Table:
    protocol, scores, boundary = evaluation.conditions.protocol, evaluation.scores, evaluation.boundary
    columns = {"IoU": scores.iou, "F1": scores.f1, "precision": scores.precision, "recall": scores.recall}
    if boundary is not None:
        columns |= {
            f"BF@{boundary.tolerance:g}px": boundary.bf,
            "BF precision": boundary.precision,
            "BF recall": boundary.recall,
            f"BIoU@{boundary.width:g}px": boundary.biou,
            "band IoU": boundary.band_iou,
        }
    counts = evaluation.confusion.counts.sum(1)
    shares = counts / counts.sum().clamp(min=1)
    rows = []
    for i, name in enumerate(protocol.classes):
        shown = name if name in protocol.scored else f"{name} (not averaged)"
        rows.append((shown, percent(float(shares[i])), *(percent(values[i]) for values in columns.values())))
    note = "In percent; share is that of labelled pixels. A dash: neither in the labels nor predicted."
    return Table("Classes", ("class", "share", *columns), tuple(rows), note)


def confusion(evaluation: Evaluation) -> Table:
    names = evaluation.conditions.protocol.classes
    counts = evaluation.confusion.counts
    rows = tuple((name, *(f"{int(n)}" for n in counts[i])) for i, name in enumerate(names))
    return Table("Confusion", ("true \\ predicted", *names), rows, "Pixels, summed over all images.")


def reliability(evaluation: Evaluation) -> Table:
    curve = evaluation.reliability
    total = max(int(curve.count.sum()), 1)
    rows = tuple(
        (
            f"{curve.edges[i]:.2f} to {curve.edges[i + 1]:.2f}",
            percent(int(count) / total),
            percent(curve.confidence[i]),
            percent(curve.accuracy[i]),
        )
        for i, count in enumerate(curve.count)
        if count
    )
    return Table("Calibration", ("confidence", "share of pixels", "mean confidence", "right"), rows, "In percent.")


def spectrum(evaluation: Evaluation) -> Table | None:
    if not evaluation.spectrum:
        return None
    seen = sum(bool(image.spectrum) for image in evaluation.images)
    rows = tuple((block, f"{ratio:.5f}") for block, ratio in evaluation.spectrum.items())
    note = (
        f"Mean of E_high / E_low of each block's output over the middle windows of {seen} images, without augmentation."
    )
    return Table("Spectrum", ("block", "E_high / E_low"), rows, note)


def per_image(evaluation: Evaluation) -> Table:
    rows = evaluation.image_rows()
    columns = [name for name in rows[0] if not name.startswith("IoU ")]
    note = "In percent, from each image's own pixels; their mean is not the score above, which is made from all pixels."
    return Table("Images", tuple(columns), tuple(_image_cells(row, columns) for row in rows), note)


def _image_cells(row: dict[str, Any], columns: list[str]) -> tuple[str, ...]:
    return tuple(str(row[name]) if name in ("image", "pixels") else percent(row[name]) for name in columns)


def all_tables(evaluation: Evaluation) -> list[Table]:
    tables = [headline, per_class, confusion, reliability, spectrum, per_image]
    return [made for make in tables if (made := make(evaluation)) is not None]
