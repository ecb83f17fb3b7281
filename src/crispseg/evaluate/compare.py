"""Two models on the same images: the difference of their scores, and whether it is more than noise."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

import torch

from crispseg.errors import UserError
from crispseg.evaluate.report import report_files, write_files
from crispseg.evaluate.result import Evaluation
from crispseg.evaluate.tables import Table
from crispseg.metrics import Comparison as Difference
from crispseg.metrics import compare_bf, compare_miou
from crispseg.metrics.words import percent

_FEW_IMAGES = 10


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A and B under the same conditions; `differences` (B - A) by score, empty where one image is all there is."""

    a: Evaluation
    b: Evaluation
    differences: dict[str, Difference]

    def sentences(self) -> list[str]:
        """What may be said, in plain words."""
        conditions = self.a.conditions
        images, tiles = conditions.images, conditions.protocol.tiles(conditions.split)
        if not self.differences:
            return [f"{images} image is too few to tell a difference from noise; score more images."]
        said = [verdict(name, difference) for name, difference in self.differences.items()]
        if images < _FEW_IMAGES:
            said.append(f"With {images} images the intervals are rough, and narrower than they should be.")
        if 1 < len(tiles) < images:
            said.append(
                f"The {images} images are parts of {len(tiles)} tiles; neighbours are alike, so the intervals are "
                "narrower than they should be."
            )
        return said

    def table(self) -> Table:
        a, b = self.a.headline, self.b.headline
        rows = []
        for name in a:
            difference = self.differences.get(name)
            change = None if a[name] is None or b[name] is None else b[name] - a[name]  # type: ignore[operator]
            difference = None if change is None else difference
            interval = f"{percent(difference.low)} to {percent(difference.high)}" if difference else ""
            chance = f"{difference.p_value:.3g}" if difference else ""
            rows.append((name, percent(a[name]), percent(b[name]), percent(change), interval, chance))
        header = ("score", "A", "B", "B - A", "95 % interval", "p")
        return Table("Comparison", header, tuple(rows), "In percent; for ECE less is better.")

    def to_dict(self) -> dict[str, Any]:
        return {
            "conditions": self.a.conditions.to_dict(),
            "a": {"model": self.a.model, "source": self.a.source, **self.a.headline},
            "b": {"model": self.b.model, "source": self.b.source, **self.b.headline},
            "differences": {name: difference.to_dict() for name, difference in self.differences.items()},
            "verdict": self.sentences(),
        }


def verdict(name: str, difference: Difference) -> str:
    """One sentence on one score."""
    if math.isnan(difference.difference):
        return f"{name}: not compared, as these images have nothing to score of at least one of the two."
    facts = (
        f"B - A = {100 * difference.difference:+.2f} points, {100 * difference.confidence:g} % interval "
        f"{100 * difference.low:+.2f} to {100 * difference.high:+.2f}, p = {difference.p_value:.2g}, "
        f"{difference.images} images"
    )
    if difference.low > 0 or difference.high < 0:
        return f"{name}: {'B' if difference.difference > 0 else 'A'} is better ({facts})."
    return f"{name}: the difference is within noise ({facts})."


def compare(a: Evaluation, b: Evaluation, resamples: int = 10_000, seed: int = 0) -> Comparison:
    """A paired bootstrap over images, of mIoU and of BF where boundaries were scored."""
    if a.conditions != b.conditions or [i.name for i in a.images] != [i.name for i in b.images]:
        raise UserError(
            f"A and B were not scored alike: {a.conditions.line}; {b.conditions.line}. Evaluate both the same way"
        )
    differences = {}
    if len(a.images) > 1:
        scored = a.conditions.protocol.scored_ids
        matrices = [torch.stack([image.confusion.counts for image in x.images]) for x in (a, b)]
        differences["mIoU"] = compare_miou(matrices[0], matrices[1], scored, resamples=resamples, seed=seed)
        if a.boundary is not None:
            contours = [torch.stack([i.boundary.contours for i in x.images if i.boundary is not None]) for x in (a, b)]
            name = f"BF@{a.boundary.tolerance:g}px"
            differences[name] = compare_bf(contours[0], contours[1], scored, resamples=resamples, seed=seed)
    return Comparison(a, b, differences)


def write_comparison(comparison: Comparison, out: str | os.PathLike[str]) -> Path:
    """Write the folder `out` with comparison.json, .md and .html, and both reports in a/ and b/."""
    files = {
        "comparison.json": (json.dumps(comparison.to_dict(), indent=2, ensure_ascii=False) + "\n").encode(),
        "comparison.md": _markdown(comparison).encode(),
        "comparison.html": _page(comparison).encode(),
        **{f"a/{name}": content for name, content in report_files(comparison.a).items()},
        **{f"b/{name}": content for name, content in report_files(comparison.b).items()},
    }
    write_files(files, out)
    return Path(out) / "comparison.html"


def _names(comparison: Comparison) -> list[str]:
    return [f"A: {comparison.a.source} ({comparison.a.model})", f"B: {comparison.b.source} ({comparison.b.model})"]


def _notes(comparison: Comparison) -> list[str]:
    return [
        *(f"A: {text}" for text in comparison.a.notes),
        *(f"B: {text}" for text in comparison.b.notes),
    ]


def _markdown(comparison: Comparison) -> str:
    lines = ["# Two models compared", "", comparison.a.conditions.line, ""]
    lines += [f"- {text}" for text in _names(comparison)]
    lines += ["", *(f"**{text}**\n" for text in comparison.sentences())]
    lines += [f"**Note:** {text}\n" for text in _notes(comparison)]
    return "\n".join([*lines, comparison.table().markdown()])


def _page(comparison: Comparison) -> str:
    from crispseg.evaluate.comparing import change_pictures, class_changes
    from crispseg.evaluate.page import legend
    from crispseg.view.pages import render_alone

    protocol = comparison.a.conditions.protocol
    gains, losses = change_pictures(comparison.a, comparison.b)
    return render_alone(
        "comparison.html",
        alone=True,
        title="Two models compared",
        line=comparison.a.conditions.line,
        models=[{"page": f"{side}/report.html", "text": t} for side, t in zip("ab", _names(comparison), strict=True)],
        sentences=comparison.sentences(),
        notes=_notes(comparison),
        table=comparison.table(),
        classes=class_changes(comparison.a, comparison.b),
        gains=gains,
        losses=losses,
        legend=legend(protocol.classes, protocol.palette),
    )
