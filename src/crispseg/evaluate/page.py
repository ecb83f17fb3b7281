"""The report's page: what the scores are, what they mean, and where the model is wrong. One file with all inside."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from crispseg.data.classes import Colour
from crispseg.evaluate.pictures import mark_colours, window_panels
from crispseg.evaluate.places import coordinates, large_confusions
from crispseg.evaluate.result import Evaluation
from crispseg.evaluate.tables import Table
from crispseg.evaluate.worst import WorstWindow
from crispseg.metrics.words import percent

if TYPE_CHECKING:
    from PIL import Image

# What each figure says, by the beginning of its name.
MEANINGS = {
    "mIoU": "overlap of map and truth, mean over the classes",
    "mF1": "mean over the classes of precision and recall in one",
    "OA": "share of labelled pixels that are right; large classes rule it",
    "overall accuracy": "share of labelled pixels that are right; large classes rule it",
    "BF": "outlines of map and truth that meet within the tolerance",
    "boundary F": "outlines of map and truth that meet within the tolerance",
    "BIoU": "overlap counted along the outlines only",
    "band mIoU": "mIoU of the pixels near true outlines",
    "band accuracy": "share right of the pixels near true outlines",
    "ECE": "how far confidence is from the share that is right; smaller is better",
}


def report_page(evaluation: Evaluation, tables: Sequence[Table]) -> str:
    from crispseg.view.pages import render_alone

    protocol = evaluation.conditions.protocol
    by_title = {table.title: table for table in tables}
    return render_alone(
        "evaluation.html",
        alone=True,
        title=f"{evaluation.source} on {protocol.name}",
        line=evaluation.conditions.line,
        notes=evaluation.notes,
        figures=[figure(name, percent(value)) for name, value in evaluation.headline.items()],
        classes=legend(protocol.classes, protocol.palette),
        marks=marks(protocol.palette),
        per_class=_class_rows(evaluation, by_title["Classes"]),
        confusion=confusion_rows(evaluation),
        confusions=_confusion_pictures(evaluation),
        reliability=reliability_chart(evaluation),
        worst=[_worst_place(evaluation, number, window) for number, window in enumerate(evaluation.worst)],
        tables=by_title,
    )


def figure(name: str, value: str) -> dict[str, str]:
    meaning = next((text for start, text in MEANINGS.items() if name.startswith(start)), "")
    return {"name": name, "value": value, "meaning": meaning}


def legend(names: Sequence[str], palette: Sequence[Colour]) -> list[dict[str, str]]:
    return [{"name": n, "colour": "#{:02x}{:02x}{:02x}".format(*c)} for n, c in zip(names, palette, strict=True)]


def marks(palette: tuple[Colour, ...]) -> list[dict[str, str]]:
    """What pictures of errors show beside the classes."""
    return legend(("wrong", "not labelled"), mark_colours(palette))


def _class_rows(evaluation: Evaluation, table: Table) -> dict[str, Any]:
    """The table of classes with swatches, and bars under share and IoU."""
    palette = evaluation.conditions.protocol.palette
    rows = []
    for colour, iou, row in zip(palette, evaluation.scores.iou, table.rows, strict=True):
        bars = {1: _fraction(row[1]), 2: float(iou)}
        cells = [{"text": cell, "bar": bars.get(i)} for i, cell in enumerate(row)][1:]
        rows.append({"name": row[0], "colour": "#{:02x}{:02x}{:02x}".format(*colour), "cells": cells})
    return {"header": table.header, "rows": rows, "note": table.note}


def _fraction(cell: str) -> float:
    return 0.0 if cell == "-" else float(cell) / 100


def confusion_rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Each true class in percent of its pixels, with how deep the cell is coloured (0 to 10)."""
    counts = evaluation.confusion.counts
    rows = []
    for i, name in enumerate(evaluation.conditions.protocol.classes):
        total = int(counts[i].sum())
        shares = [int(n) / total if total else 0.0 for n in counts[i]]
        cells = [
            {"text": f"{100 * s:.1f}" if total else "-", "heat": round(10 * s**0.6), "own": j == i}
            for j, s in enumerate(shares)
        ]
        rows.append({"name": name, "pixels": f"{total:,}", "cells": cells})
    return rows


def _confusion_pictures(evaluation: Evaluation) -> list[dict[str, Any]]:
    names = evaluation.conditions.protocol.classes
    return [
        {
            "title": f"{names[found.true]} taken for {names[found.predicted]}",
            "text": f"{percent(found.share)} % of the class, {percent(found.of_all)} % of all labelled pixels; "
            f"most of it in {found.window.name}, row {found.window.top}, column {found.window.left}",
            "panels": panels(found.window, evaluation.conditions.protocol.palette),
        }
        for found in large_confusions(evaluation)
    ]


def _worst_place(evaluation: Evaluation, number: int, window: WorstWindow) -> dict[str, Any]:
    return {
        "number": number,
        "title": f"{window.name}, row {window.top}, column {window.left}",
        "text": f"{percent(window.share)} % wrong",
        "coordinates": coordinates(evaluation, window),
        "panels": panels(window, evaluation.conditions.protocol.palette),
    }


def panels(window: WorstWindow, palette: tuple[Colour, ...], who: str = "prediction") -> list[dict[str, Any]]:
    """Four pictures of a window with their captions below them."""
    captions = {"image": "image", "truth": "truth", "prediction": who, "errors": f"{100 * window.share:.1f} % wrong"}
    place = f"{window.name}, row {window.top}, column {window.left}"
    return [
        {"picture": picture_bytes(picture, kind), "caption": captions[kind], "alt": f"{captions[kind]} of {place}"}
        for kind, picture in window_panels(window, palette).items()
    ]


def picture_bytes(picture: Image.Image, kind: str) -> bytes:
    """Photographs as JPEG; labels have few colours, so a PNG of them is exact and small."""
    buffer = io.BytesIO()
    if kind in ("truth", "prediction"):
        picture.quantize(255).save(buffer, "png", optimize=True)
    else:
        picture.save(buffer, "jpeg", quality=85, subsampling=0)
    return buffer.getvalue()


def reliability_chart(evaluation: Evaluation) -> dict[str, Any]:
    """The curve of right against sure, and the bars of how many pixels, in the picture's own units (0 to 400)."""
    curve = evaluation.reliability
    total = max(int(curve.count.sum()), 1)
    filled = [i for i, count in enumerate(curve.count) if count]
    highest = max(float(count) / total for count in curve.count) or 1.0
    return {
        "ece": percent(curve.ece),
        "points": [(400 * float(curve.confidence[i]), 400 * (1 - float(curve.accuracy[i]))) for i in filled],
        "bars": [
            (
                400 * float(curve.edges[i]),
                400 * float(curve.edges[i + 1] - curve.edges[i]),
                90 * float(count) / total / highest,
            )
            for i, count in enumerate(curve.count)
        ],
        "highest": f"{100 * highest:.0f}",
    }
