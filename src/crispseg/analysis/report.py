"""The analysis folder: analysis.html, .md, .json, spectrum.csv, plots, and pictures of images; whole or not there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from crispseg.analysis.pictures import draw_activation, draw_activity, draw_allocation, draw_errors
from crispseg.analysis.plots import MISSING, draw_plots
from crispseg.analysis.result import Analysis, Look
from crispseg.analysis.tables import BETWEEN, MISTAKES, SCORES, SPECTRA, USE, all_tables, spectrum_csv
from crispseg.evaluate.report import check_free, encoded, write_files
from crispseg.evaluate.tables import Table

PAGE = "analysis.html"
SPECTRA_PLOT, GATES_PLOT, PROTOTYPES_PLOT = "spectrum.png", "gates.png", "prototypes.png"
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
    drawn = [dict(_pictures(analysis, number, look)) for number, look in enumerate(analysis.looks, 1)]
    pictures = {name: picture for each in drawn for name, picture in each.items()}
    files = {
        "analysis.json": (json.dumps(analysis.to_dict(), indent=2, ensure_ascii=False) + "\n").encode(),
        "analysis.md": _markdown(analysis, notes, tables).encode(),
        **plots,
        **pictures,
        PAGE: _page(analysis, notes, tables, plots, drawn).encode(),
    }
    if any(variant.spectrum for variant in analysis.variants.values()):
        files["spectrum.csv"] = spectrum_csv(analysis).encode()
    return files


def _pictures(analysis: Analysis, number: int, look: Look) -> Iterable[tuple[str, bytes]]:
    """Numbered, as two images may be called alike but for what a file's name should not have."""
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
        yield f"images/{number:02d}-{name}-{kind}.jpg", encoded(picture, "jpeg")


def _title(analysis: Analysis) -> str:
    return f"{analysis.source} looked into, on {analysis.conditions.protocol.name}"


def _markdown(analysis: Analysis, notes: Iterable[str], tables: list[Table]) -> str:
    head = [f"# {_title(analysis)}", "", analysis.conditions.line, ""]
    head += [f"**Note:** {text}\n" for text in notes]
    return "\n".join([*head, *(table.markdown() for table in tables)])


def _page(
    analysis: Analysis,
    notes: Iterable[str],
    tables: list[Table],
    plots: Iterable[str],
    pictures: Iterable[Iterable[str]],  # of each image that is drawn
) -> str:
    from crispseg.view.pages import render_alone

    by_title = {table.title: table for table in tables}
    plotted = {SPECTRA_PLOT: list(SPECTRA.values()), GATES_PLOT: [t for t in by_title if t.startswith("Gates: ")]}
    plotted[PROTOTYPES_PLOT] = [USE, BETWEEN]
    heads = {plot: next((title for title in titles if title in by_title), "") for plot, titles in plotted.items()}
    plot_of = {title: plot for plot, title in heads.items() if plot in plots}
    order = [SCORES, MISTAKES, *(title for titles in plotted.values() for title in titles)]
    order += [title for title in by_title if title not in order]
    return render_alone(
        "analysis.html",
        alone=True,
        title=_title(analysis),
        line=analysis.conditions.line,
        notes=list(notes),
        sections=[{"table": by_title[t], "plot": plot_of.get(t)} for t in order if t in by_title],
        looks=[
            {
                "name": look.name,
                "where": _where(look),
                "pictures": [{"file": n, "caption": _KINDS[n.rpartition("-")[2].removesuffix(".jpg")]} for n in names],
            }
            for look, names in zip(analysis.looks, pictures, strict=True)
        ],
    )


def _where(look: Look) -> str:
    height, width = look.truth.shape
    return f"{width} x {height} px from row {look.window[0]}, column {look.window[1]}"
