"""The report as one HTML page that needs nothing else: pictures are inside, no scripts, no servers."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence

from crispseg.evaluate.result import Evaluation
from crispseg.evaluate.tables import Table, percent

_IN_PERCENT = "In percent. ECE, the calibration error, is the better the smaller; all others the larger."
_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; margin: 0 auto; max-width: 64rem; padding: 1rem; }
h1 { font-size: 1.5rem; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; border-bottom: 1px solid #ddd; }
.line { background: #f2f5f9; border-left: 4px solid #1f5aa5; padding: .5rem .75rem; overflow-wrap: anywhere; }
.note { background: #fdf3dd; border-left: 4px solid #d39e00; padding: .5rem .75rem; margin: .5rem 0; }
.figures { display: flex; flex-wrap: wrap; gap: .5rem; margin: 1rem 0; padding: 0; list-style: none; }
.figures li { background: #f7f7f7; border-radius: .4rem; padding: .4rem .8rem; }
.figures b { display: block; font-size: 1.35rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #e4e4e4; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; height: auto; }
figure { margin: 0 0 1rem; }
figcaption { font-size: .9rem; overflow-wrap: anywhere; }
.worst { display: grid; gap: 1.25rem; grid-template-columns: repeat(auto-fill, minmax(min(22rem, 100%), 1fr)); }
""".strip()


def page(title: str, body: Sequence[str]) -> str:
    parts = "\n".join(body)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>
{_STYLE}
</style>
</head>
<body>
{parts}
</body>
</html>
"""


def report_page(evaluation: Evaluation, tables: Sequence[Table], pictures: Mapping[str, bytes]) -> str:
    """`pictures` are the report's files by name; those below worst/ are shown in their order."""
    conditions = evaluation.conditions
    title = f"{evaluation.source} on {conditions.protocol.name}"
    by_title = {table.title: table for table in tables}
    body = [f"<h1>{html.escape(title)}</h1>", line(conditions.line), *map(note, evaluation.notes), figures(evaluation)]
    body += section(by_title["Classes"])
    body += ["<h2>Confusion</h2>", figure(pictures["confusion.png"], "confusion.png", "")]
    body += section(by_title["Calibration"], figure(pictures["reliability.png"], "reliability.png", ""))
    if "Spectrum" in by_title:
        body += section(by_title["Spectrum"])
    worst = [name for name in pictures if name.startswith("worst/")]
    if worst:
        shown = zip(worst, evaluation.worst, strict=True)
        body += ["<h2>Worst windows</h2>", '<div class="worst">']
        body += [
            figure(pictures[name], name, f"{w.name}, row {w.top}, column {w.left}: {percent(w.share)} % wrong")
            for name, w in shown
        ]
        body.append("</div>")
    images = by_title["Images"]
    body += [f"<details><summary>All {len(images.rows)} images</summary>", images.html(), "</details>"]
    return page(title, body)


def line(text: str) -> str:
    return f'<p class="line">{html.escape(text)}</p>'


def note(text: str) -> str:
    return f'<p class="note">{html.escape(text)}</p>'


def figures(evaluation: Evaluation) -> str:
    items = "".join(
        f"<li>{html.escape(name)}<b>{percent(value)}</b></li>" for name, value in evaluation.headline.items()
    )
    return f'<ul class="figures">{items}</ul>\n<p>{html.escape(_IN_PERCENT)}</p>'


def section(table: Table, *before: str) -> list[str]:
    return [f"<h2>{html.escape(table.title)}</h2>", *before, table.html()]


def figure(data: bytes, name: str, caption: str) -> str:
    kind = "jpeg" if name.endswith(".jpg") else "png"
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    text = html.escape(caption or name.partition(".")[0], quote=True)
    below = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return f'<figure><img src="{source}" alt="{text}">{below}</figure>'
