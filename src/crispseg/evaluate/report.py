"""The report folder: scores.json, scores.md, per_image.csv, pictures and report.html; whole or not there at all."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from crispseg.errors import UserError
from crispseg.evaluate.page import report_page
from crispseg.evaluate.pictures import draw_confusion, draw_reliability, draw_worst, id_picture
from crispseg.evaluate.places import map_files
from crispseg.evaluate.result import Evaluation
from crispseg.evaluate.tables import all_tables
from crispseg.files import refuse_remote, replacing
from crispseg.reading import plain_cell

if TYPE_CHECKING:
    from PIL import Image


def write_report(evaluation: Evaluation, out: str | os.PathLike[str]) -> Path:
    """Write the folder `out`, which must be new or empty; returns its page."""
    write_files(report_files(evaluation), out)
    return Path(out) / "report.html"


def write_files(files: Mapping[str, bytes], out: str | os.PathLike[str]) -> None:
    """Make the folder `out` with these files in it; it must be new or empty."""
    check_free(out)
    with replacing(out) as aside:
        for name, content in files.items():
            path = aside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


@contextlib.contextmanager
def reserved(wanted: str | None, label: str, first: bool) -> Iterator[Path]:
    """A new folder for a report, `wanted` or the next free reports/LABEL-NUMBER, made before anything is computed.

    It is removed again when nothing came of it. Only the `first` process makes it.
    """
    if not first:
        yield Path(wanted) if wanted is not None else Path("reports") / label  # written to by the first alone
        return
    folder = _make_folder(wanted, label)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):  # they hold a report
            folder.rmdir()
            if wanted is None:
                folder.parent.rmdir()


def _make_folder(wanted: str | None, label: str) -> Path:
    """The folder that is wanted, or one of the next free number, which no other report that begins now gets too."""
    if wanted is not None:
        check_free(wanted)
    for number in itertools.count(1):
        folder = Path(wanted) if wanted is not None else Path("reports") / f"{label}-{number}"
        try:
            folder.mkdir(parents=True, exist_ok=wanted is not None)
        except OSError as error:
            if wanted is None and folder.is_dir():
                continue
            raise UserError(
                f"cannot make the report folder {folder}: {error.strerror}; choose another place"
            ) from error
        return folder
    raise AssertionError("numbers do not end")


def check_free(out: str | os.PathLike[str]) -> None:
    """Refuse a place that holds something, so that no report is mixed with another."""
    folder = Path(out)
    refuse_remote(folder)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not an empty folder; choose another place")


def report_files(evaluation: Evaluation) -> dict[str, bytes]:
    """The files of a report by name."""
    tables = all_tables(evaluation)
    pictures = report_pictures(evaluation)
    return {
        "scores.json": (json.dumps(evaluation.to_dict(), indent=2, ensure_ascii=False) + "\n").encode(),
        "scores.md": _markdown(evaluation, [table.markdown() for table in tables]).encode(),
        "per_image.csv": _per_image(evaluation).encode(),
        **pictures,
        **_map_files(evaluation),
        "report.html": report_page(evaluation, tables).encode(),
    }


def _map_files(evaluation: Evaluation) -> dict[str, bytes]:
    """places.json and, of the images it names, map and truth: for `crisp view`."""
    listed, maps = map_files(evaluation)
    if not listed:
        return {}
    protocol = evaluation.conditions.protocol
    files = {name: id_picture(ids, protocol.classes, protocol.palette) for name, ids in maps.items()}
    return {"places.json": (json.dumps(listed, indent=2, ensure_ascii=False) + "\n").encode(), **files}


def report_pictures(evaluation: Evaluation) -> dict[str, bytes]:
    protocol = evaluation.conditions.protocol
    files = {
        "confusion.png": encoded(draw_confusion(evaluation.confusion.counts.numpy(), protocol.classes)),
        "reliability.png": encoded(draw_reliability(evaluation.reliability)),
    }
    for number, window in enumerate(evaluation.worst, 1):
        name = re.sub(r"[^\w.-]+", "_", window.name)
        picture = draw_worst(window, protocol.classes, protocol.palette)
        files[f"worst/{number:02d}-{name}-{window.top}-{window.left}.jpg"] = encoded(picture, "jpeg")
    return files


def encoded(picture: Image.Image, kind: str = "png") -> bytes:
    buffer = io.BytesIO()
    # full colour resolution, or red errors would bleed
    options = {"quality": 90, "subsampling": 0} if kind == "jpeg" else {"optimize": True}
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def _markdown(evaluation: Evaluation, tables: list[str]) -> str:
    conditions = evaluation.conditions
    head = [f"# {evaluation.source} on {conditions.protocol.name}", "", conditions.line, ""]
    for text in evaluation.notes:
        head += [f"**Note:** {text}", ""]
    return "\n".join([*head, *tables])


def _per_image(evaluation: Evaluation) -> str:
    """Fractions, empty where not defined; each row says what it was made under."""
    rows = [row | {"conditions": evaluation.conditions.line} for row in evaluation.image_rows()]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: plain_cell(value) for name, value in row.items()} for row in rows)
    return buffer.getvalue()
