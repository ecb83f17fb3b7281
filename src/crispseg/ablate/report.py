"""A table as Markdown and JSON, made from whatever is finished; what is missing is said."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crispseg import config as configs
from crispseg.ablate import plot, speed
from crispseg.ablate.plan import ExperimentPlan, Place, slug
from crispseg.ablate.start import named
from crispseg.ablate.statistics import BEST, Column, Difference, Result, Summary, columns, compared, paired, summarise
from crispseg.ablate.store import Store
from crispseg.ablate.table import Row, Table
from crispseg.bench import Result as Timings
from crispseg.files import write_json, write_text

_BOTH = "all data"


@dataclasses.dataclass(frozen=True)
class Found:
    """What there is of a table."""

    table: Table
    plan: ExperimentPlan
    results: dict[Place, Result]
    missing: dict[Place, str]  # why
    timings: Timings | None

    @property
    def labels(self) -> list[str]:
        return [one.label for one in self.plan.data]

    @property
    def columns(self) -> list[Column]:
        """Without that of selected weights where selecting made no difference."""
        selected = any(result["best"] != result["last"] for result in self.results.values())
        return [*columns(self.table.scores), *([BEST] if selected and "mIoU" in self.table.scores else [])]

    @property
    def compared(self) -> tuple[Column, ...]:
        return compared(self.table.scores)

    @property
    def warnings(self) -> list[str]:
        """What is doubtful about the table."""
        scored = [text for label in self.labels if (text := self._scored_differently(label))]
        return [*self.plan.warnings(self.table), *scored]

    def _scored_differently(self, label: str) -> str:
        """Two numbers may be compared only if the lines that tell what they were made on agree."""
        rows: dict[str, dict[str, None]] = {}
        for place, result in self.results.items():
            if place.data == label:
                rows.setdefault(str(result["protocol"]), {})[place.row] = None
        if len(rows) < 2:
            return ""
        lines = "; ".join(f"{named(list(names))} on {line}" for line, names in rows.items())
        return f"rows of {label} are scored differently, so their differences are not of their settings alone: {lines}"

    def of(self, row: Row, labels: Sequence[str]) -> dict[tuple[str, int], Result]:
        """The row's results, by data set and seed."""
        return {
            (place.data, place.seed): result
            for place, result in self.results.items()
            if place.row == row.name and place.data in labels
        }

    def summary(self, row: Row, label: str, column: Column) -> Summary:
        return summarise(list(self.of(row, [label]).values()), column)

    def differences(self, row: Row) -> dict[str, dict[str, Difference]]:
        """Per data set, and over all where there are several: per score the difference to the row's opponent."""
        opponent = self.table.opponent(row)
        if opponent is None:
            return {}
        groups = {label: [label] for label in self.labels} | ({_BOTH: self.labels} if len(self.labels) > 1 else {})
        return {
            name: {c.heading: paired(self.of(row, labels), self.of(opponent, labels), c) for c in self.compared}
            for name, labels in groups.items()
        }


def find(table: Table, plan: ExperimentPlan, store: Store, timings: Timings | None) -> Found:
    results: dict[Place, Result] = {}
    missing: dict[Place, str] = {}
    for place, run in plan.places.items():
        if place.table != table.name:
            continue
        result = store.find(run)
        if result is None:
            missing[place] = store.state(run)
        else:
            results[place] = result
    return Found(table, plan, results, missing, timings)


def report(table: Table, plan: ExperimentPlan, store: Store, timings: Timings | None) -> str:
    """Write TABLE.md, TABLE.json and, where there are timings, a plot per data set; returns the Markdown."""
    found = find(table, plan, store, timings)
    drawn = [] if timings is None else _draw(found, timings)
    markdown = as_markdown(found) + "".join(f"\n![{table.title}]({name})\n" for name in drawn)
    text, values = table_files(table, plan.out)
    write_text(text, markdown)
    write_json(values, as_values(found))
    return markdown


def table_files(table: Table, out: Path) -> tuple[Path, Path]:
    return out / f"{table.name}.md", result_file(table, out)


def result_file(table: Table, out: Path) -> Path:
    return out / f"{table.name}.json"


def bench_file(table: Table, out: Path) -> Path:
    return out / f"{table.name}-bench.json"


def _draw(found: Found, timings: Timings) -> list[str]:
    """The files drawn."""
    what, latency = speed.latencies(timings)
    shown, names = found.columns[0], []
    for label in found.labels:
        points = []
        for row in found.table.rows:
            word = speed.model_word(found.table, row)
            score = found.summary(row, label, shown)
            if word in latency and score.mean is not None:
                points.append(plot.Point(row.name, latency[word], score.mean, score.spread, word.startswith("crisp_")))
        name = f"{found.table.name}-{slug(label)}.png"
        if not plot.draw(points, f"latency, ms ({what})", f"{shown.heading} on {label}, %", found.plan.out / name):
            names.append(name)
    return names


def as_values(found: Found) -> dict[str, Any]:
    """The table's JSON."""
    return {
        "title": found.table.title,
        "data": found.labels,
        "seeds": list(found.plan.seeds),
        "start": {label: dict(found.plan.starts[found.table.name, label].weights) for label in found.labels},
        "warnings": found.warnings,
        "rows": [_row_values(found, row) for row in found.table.rows],
        "timed_only": {word: speed.columns(found.timings, word) for word in _beside(found)} if found.timings else {},
    }


def _row_values(found: Found, row: Row) -> dict[str, Any]:
    opponent = found.table.opponent(row)
    own = [
        (place, found.plan.places[place]) for place in found.plan.places if place[:2] == (found.table.name, row.name)
    ]
    values = {
        "name": row.name,
        "set": row.set,
        "paper": row.paper,
        "scores": {
            label: {c.heading: dataclasses.asdict(found.summary(row, label, c)) for c in found.columns}
            for label in found.labels
        },
        "against": None if opponent is None else opponent.name,
        "differences": configs.to_dict(
            {k: {h: dataclasses.asdict(d) for h, d in v.items()} for k, v in found.differences(row).items()}
        ),
        "runs": [
            {"data": p.data, "seed": p.seed, "run": run.name, "state": found.missing.get(p, "finished")}
            for p, run in own
        ],
    }
    if found.timings is not None:
        values["speed"] = speed.columns(found.timings, speed.model_word(found.table, row))
    return values


def as_markdown(found: Found) -> str:
    """Scores with mean and spread, differences to the baseline, what is missing, what the scores were made on."""
    lines = [f"## {found.table.title}", "", *_scores(found)]
    if found.results:
        lines += ["", *_differences(found)]
    if found.missing:
        runs = len(found.missing) + len(found.results)
        lines += ["", f"Missing are {len(found.missing)} of {runs} runs:", ""]
        lines += [f"- {place.row}, {place.data}, seed {place.seed}: {why}" for place, why in found.missing.items()]
    lines += ["", *_facts(found), "", *found.plan.start_lines(found.table)]
    lines += [f"Warning: {text}." for text in found.warnings]
    if found.timings is not None:
        lines += ["", *speed.footnotes(found.timings)]
    return "\n".join([*lines, *(["", found.table.notes.strip()] if found.table.notes else [])]) + "\n"


def _scores(found: Found) -> list[str]:
    beside, apart = _quoted(found)
    headings = [""]
    for label in found.labels:
        headings += [_of(found, "runs", label), *(_of(found, column.heading, label) for column in found.columns)]
        headings += [_of(found, f"paper's {name}", label) for name in beside[label]]
    rows = []
    for row in found.table.rows:
        cells = [row.name]
        for label in found.labels:
            cells += [_count(found, row, label)]
            cells += [_number(found.summary(row, label, column), column) for column in found.columns]
            cells += _paper(row, _dataset(label), beside[label])
        timed = {} if found.timings is None else speed.columns(found.timings, speed.model_word(found.table, row))
        papers = [cell for dataset, names in apart.items() for cell in _paper(row, dataset, names)]
        rows.append(_line([*cells, *timed.values(), *papers]))
    elsewhere = [f"paper's {f'{dataset} ' if dataset else ''}{name}" for dataset in apart for name in apart[dataset]]
    if found.timings is not None:
        headings += speed.columns(found.timings, "")
        rows += [_timed_only(found, word, beside, len(elsewhere)) for word in _beside(found)]
    headings += elsewhere
    return [_line(headings), _line(["---"] * len(headings)), *rows]


def _quoted(found: Found) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Which of the paper's numbers stand beside ours, by label, and which at the end, by data set (or none)."""
    rows, sets = found.table.rows, {_dataset(label) for label in found.labels}
    named = {key: None for row in rows for key, value in row.paper.items() if isinstance(value, dict)}
    names = {dataset: list(dict.fromkeys(n for row in rows for n in row.paper_on(dataset))) for dataset in ("", *named)}
    beside = {label: names.get(_dataset(label), []) for label in found.labels}
    return beside, {dataset: columns for dataset, columns in names.items() if dataset not in sets}


def _dataset(label: str) -> str:
    """Of a protocol's name, potsdam/paper5, the set's."""
    return label.partition("/")[0]


def _paper(row: Row, dataset: str, names: Sequence[str]) -> list[str]:
    numbers = row.paper_on(dataset)
    return [f"{numbers[name]:g}" if name in numbers else "" for name in names]


def _beside(found: Found) -> tuple[str, ...]:
    return () if found.table.bench is None else found.table.bench.beside


def _timed_only(found: Found, word: str, beside: Mapping[str, Sequence[str]], elsewhere: int) -> str:
    """The line of a model that was timed beside the rows'."""
    assert found.timings is not None
    cells = [word]
    for label in found.labels:
        cells += ["timed only", *("-" for _ in found.columns), *("" for _ in beside[label])]
    return _line([*cells, *speed.columns(found.timings, word).values(), *("" for _ in range(elsewhere))])


def _count(found: Found, row: Row, label: str) -> str:
    """How many runs there are; of how many, if some are missing; why, if all are."""
    why = [reason for place, reason in found.missing.items() if (place.row, place.data) == (row.name, label)]
    done, wanted = len(found.plan.seeds) - len(why), len(found.plan.seeds)
    if not why:
        return str(done)
    return f"{done} of {wanted}" if done else f"0 of {wanted}: {', '.join(dict.fromkeys(w.split(':')[0] for w in why))}"


def _differences(found: Found) -> list[str]:
    differing = {row.name: found.differences(row) for row in found.table.rows}
    groups = next((list(d) for d in differing.values() if d), [])
    if not groups:
        return []
    headings = ["difference", "to"]
    for group in groups:
        headings += [_of(found, column.heading, group) for column in found.compared] + [_of(found, "pairs", group)]
    lines = [_line(headings), _line(["---"] * len(headings))]
    for row in found.table.rows:
        opponent, own = found.table.opponent(row), differing[row.name]
        if opponent is None:
            continue
        cells = [row.name, opponent.name]
        for group in groups:
            cells += [_signed(own[group][column.heading], column) for column in found.compared]
            cells += [str(own[group][found.compared[0].heading].pairs)]
        lines.append(_line(cells))
    return lines


def _facts(found: Found) -> list[str]:
    if not found.results:
        return ["No run is finished."]
    lines = list(dict.fromkeys(str(result["protocol"]) for result in found.results.values()))
    steps = ", ".join(str(n) for n in sorted({result["steps"] for result in found.results.values()}))
    lines += [
        "",
        f"{steps} steps. Scores: mean ± standard deviation over seeds, of the weights as training ended.",
        "Differences: mean ± standard error over pairs of runs with the same seed and data, and the 95 % interval of",
        "Student's t; * where zero lies outside of it, which chance alone makes of one in twenty.",
    ]
    if BEST in found.columns:
        lines.append("Best mIoU is of the weights selected on the images it is scored on.")
    return lines


def _of(found: Found, heading: str, label: str) -> str:
    return heading if len(found.labels) == 1 else f"{label}: {heading}"


def _number(summary: Summary, column: Column) -> str:
    if summary.mean is None:
        return "-"
    spread = "" if summary.spread is None else f" ± {summary.spread:.{column.digits}f}"
    return f"{summary.mean:.{column.digits}f}{spread}"


def _signed(difference: Difference, column: Column) -> str:
    if difference.mean is None:
        return "-"
    error = "" if difference.error is None else f" ± {difference.error:.{column.digits}f}"
    bounds = [f"{bound:+.{column.digits}f}" for bound in difference.interval or ()]
    interval = f" [{', '.join(bounds)}]" if bounds else ""
    return f"{difference.mean:+.{column.digits}f}{error}{interval}{' *' if difference.clear else ''}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
