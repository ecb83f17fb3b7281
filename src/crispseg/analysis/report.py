"""The analysis folder: analysis.html, .md, .json, spectrum.csv, plots, and pictures of images; whole or not there."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from crispseg.analysis.pictures import draw_activation, draw_activity, draw_allocation, draw_errors
from crispseg.analysis.plots import MISSING, draw_plots
from crispseg.analysis.result import Analysis, Look
from crispseg.analysis.tables import BETWEEN, MISTAKES, SCORES, SPECTRA, USE, all_tables, spectrum_csv
from crispseg.evaluate.page import line, note, page
from crispseg.evaluate.report import check_free, encoded, write_files
from crispseg.evaluate.tables import Table

PAGE = "analysis.html"
# What is said above each kind of picture.
_KINDS = {
    "errors": "Errors",
    "allocation": "Which prototype won",
    "activation": "Cosines of classes and of prototypes",
    "activity": "Answers of the mixers",
}


def write_analysis(analysis: Analysis, out: str | os.PathLike[str]) -> Path:
    """Write the folder `out`, which must be new or empty; returns its page."""
    check_free(out)  # before the drawing, which takes a while
    write_files(analysis_files(analysis), out)
    return Path(out) / PAGE


def analysis_files(analysis: Analysis) -> dict[str, bytes]:
    """The files of the folder by name. The page shows the pictures beside it and needs nothing else."""
    tables = all_tables(analysis)
    plots = draw_plots(analysis)
    notes = [*analysis.notes, *([] if plots else [MISSING])]
    pictures = {name: picture for look in analysis.looks for name, picture in _pictures(analysis, look)}
    files = {
        "analysis.json": (json.dumps(analysis.to_dict(), indent=2, ensure_ascii=False) + "\n").encode(),
        "analysis.md": _markdown(analysis, notes, tables).encode(),
        **plots,
        **pictures,
        PAGE: _page(analysis, notes, tables, plots, pictures).encode(),
    }
    if any(variant.spectrum for variant in analysis.variants.values()):
        files["spectrum.csv"] = spectrum_csv(analysis).encode()
    return files


def _pictures(analysis: Analysis, look: Look) -> Iterable[tuple[str, bytes]]:
    protocol, focus = analysis.conditions.protocol, analysis.conditions.settings.focus
    name = re.sub(r"[^\w.-]+", "_", look.name)
    drawn = {"errors": draw_errors(look, protocol.classes, protocol.palette)}
    if look.cosines is not None:
        drawn["allocation"] = draw_allocation(look, protocol.classes, protocol.palette)
        chosen = None if focus is None else protocol.classes.index(focus)
        drawn["activation"] = draw_activation(look, protocol.classes, chosen)
    if look.activity:
        drawn["activity"] = draw_activity(look)
    for kind, picture in drawn.items():
        yield f"images/{name}-{kind}.jpg", encoded(picture, "jpeg")


def _title(analysis: Analysis) -> str:
    return f"{analysis.source} looked into, on {analysis.conditions.protocol.name}"


def _markdown(analysis: Analysis, notes: Iterable[str], tables: list[Table]) -> str:
    head = [f"# {_title(analysis)}", "", analysis.conditions.line, ""]
    head += [f"**Note:** {text}\n" for text in notes]
    return "\n".join([*head, *(table.markdown() for table in tables)])


def _page(
    analysis: Analysis, notes: Iterable[str], tables: list[Table], plots: Iterable[str], pictures: Iterable[str]
) -> str:
    by_title = {table.title: table for table in tables}
    gates = [title for title in by_title if title.startswith("Gates: ")]
    parts = [
        ("", [SCORES, MISTAKES]),
        ("spectrum.png", list(SPECTRA.values())),
        ("gates.png", gates),
        ("prototypes.png", [USE, BETWEEN]),
    ]
    body = [f"<h1>{html.escape(_title(analysis))}</h1>", line(analysis.conditions.line), *map(note, notes)]
    for plot, titles in parts:
        for number, title in enumerate(title for title in titles if title in by_title):
            body.append(f"<h2>{html.escape(title)}</h2>")
            if number == 0 and plot in plots:
                body.append(_shown(plot, title))
            body.append(by_title[title].html())
    for look, names in _by_image(analysis, pictures):
        body.append(f"<h2>{html.escape(look.name)}</h2>")
        body.append(f"<p>{_where(look)}</p>")
        for name in names:
            body.append(_shown(name, _KINDS[name.rpartition("-")[2].removesuffix(".jpg")]))
    return page(_title(analysis), body)


def _by_image(analysis: Analysis, pictures: Iterable[str]) -> Iterable[tuple[Look, list[str]]]:
    for look in analysis.looks:
        name = re.sub(r"[^\w.-]+", "_", look.name)
        yield look, [f"images/{name}-{kind}.jpg" for kind in _KINDS if f"images/{name}-{kind}.jpg" in pictures]


def _where(look: Look) -> str:
    height, width = look.truth.shape
    return f"{width} x {height} px from row {look.window[0]}, column {look.window[1]}"


def _shown(name: str, caption: str) -> str:
    """A picture that lies beside the page, and a link to it in full size."""
    source, text = html.escape(name, quote=True), html.escape(caption, quote=True)
    image = f'<a href="{source}"><img src="{source}" alt="{text}" loading="lazy"></a>'
    return f"<figure>{image}<figcaption>{text}</figcaption></figure>"
