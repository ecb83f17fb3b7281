"""What a comparison's page shows: each class in both models, and the places where they differ most."""

from __future__ import annotations

from typing import Any

from crispseg.evaluate.page import picture_bytes
from crispseg.evaluate.pictures import change_panels
from crispseg.evaluate.places import Change, changes, coordinates
from crispseg.evaluate.result import Evaluation
from crispseg.metrics.words import percent


def class_changes(a: Evaluation, b: Evaluation) -> list[dict[str, Any]]:
    """IoU of every class in A and B, from the largest gain to the largest loss; undefined ones last."""
    protocol = a.conditions.protocol
    rows = []
    for i, name in enumerate(protocol.classes):
        first, second = float(a.scores.iou[i]), float(b.scores.iou[i])
        rows.append(
            {
                "name": name,
                "colour": "#{:02x}{:02x}{:02x}".format(*protocol.palette[i]),
                "a": percent(first),
                "b": percent(second),
                "bars": (first, second),
                "change": second - first,
                "text": "-" if second != second or first != first else f"{100 * (second - first):+.2f}",
            }
        )
    return sorted(rows, key=lambda row: -row["change"] if row["change"] == row["change"] else float("inf"))


def change_pictures(a: Evaluation, b: Evaluation) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    gains, losses = changes(a, b)
    return [_shown(a, change) for change in gains], [_shown(a, change) for change in losses]


def _shown(evaluation: Evaluation, change: Change) -> dict[str, Any]:
    window = change.a
    place = f"{window.name}, row {window.top}, column {window.left}"
    kinds = {"image": "image", "who is right": "errors"}
    palette = evaluation.conditions.protocol.palette
    return {
        "title": place,
        "text": f"{100 * change.gain:+.1f} points of the labelled pixels; wrong: A {percent(change.a.share)} %, "
        f"B {percent(change.b.share)} %",
        "coordinates": coordinates(evaluation, window),
        "panels": [
            {"picture": picture_bytes(picture, kinds.get(name, "truth")), "caption": name, "alt": f"{name}: {place}"}
            for name, picture in change_panels(change, palette).items()
        ],
    }
