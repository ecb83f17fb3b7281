"""Train tables of experiments on several data sets with several seeds, and print them with mean and spread.

  crisp ablate dco data=data/potsdam --data potsdam --seeds 0 1 2
  crisp ablate dco neck --data ablation_dubai ablation_vaihingen
  crisp ablate components schedule.steps=500 --data my_folder --size nano
  crisp ablate my_table.yaml --data my_config.yaml=my_folder

`crisp configs` lists the tables and configs that come along; files of your own are given by their paths.
A row changes some keys of the data set's config (or of the defaults, for a folder); key=value words change all rows.
--data CONFIG=FOLDER is a config whose images lie in that folder. A run that several tables need is run once.
Interrupted, the same command goes on: finished runs are kept, others are resumed. Writes TABLE.md, TABLE.json and, for
a table with `bench`, its timings and a plot of accuracy against latency; results.json holds all that runs gave.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from crispseg.errors import UserError
from crispseg.files import refuse_remote
from crispseg.outputs import only_one

if TYPE_CHECKING:
    from crispseg.ablate.plan import ExperimentPlan, Run
    from crispseg.ablate.runner import Failure
    from crispseg.ablate.store import Store
    from crispseg.cli.printer import Printer


_NAMED = 5  # runs that failed alike; the report has all of them


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("words", nargs="+", metavar="TABLE or key=value", help="names or files of tables; keys for all rows")
    add("--data", "--config", required=True, nargs="+", action="extend", metavar="SET", help="configs or data folders")
    add("--seeds", type=int, nargs="+", default=[0], help="default: 0")
    add("--together", "--jobs", type=int, default=1, metavar="N", help="runs at a time on this machine")
    add("--sharing", type=int, default=1, metavar="N", help="up to N rows of a set and seed share a process's batches")
    add("--size", choices=("nano", "micro", "tiny", "small", "base"), help="where the table leaves it open")
    add(
        *("-o", "--out"),
        type=Path,
        default=Path("runs/ablate"),
        help="default: %(default)s; tables there share their runs",
    )
    add("--keep", choices=("all", "results"), default="all", help="results: finished runs keep no weights, no pictures")
    add("--rows", nargs="+", metavar="ROW", help="train these rows alone; the tables still have all")
    add("--minutes", type=float, metavar="M", help="begin no run after so many")
    add("--no-bench", action="store_true", help="leave speed and memory out")
    add("--list", action="store_true", help="only list the distinct runs")
    add("--report", action="store_true", help="only make the tables, of what is finished and timed")


def run(args: argparse.Namespace) -> None:
    from crispseg.ablate.boundaries import check_boundaries
    from crispseg.ablate.plan import make_plan, read_data_sets
    from crispseg.ablate.report import table_files
    from crispseg.ablate.store import Store
    from crispseg.ablate.table import read_table
    from crispseg.cli.printer import Printer
    from crispseg.configs import find_table

    for name in ("together", "sharing"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} must be at least 1, not {getattr(args, name)}")
    paths = [find_table(word) for word in args.words if "=" not in word]
    if not paths:
        raise UserError("no table: give the name of one (`crisp configs` lists them) or a file")
    tables = [read_table(path, args.size) for path in paths]
    keys = [word for word in args.words if "=" in word]
    plan = make_plan(tables, read_data_sets(args.data), keys, args.seeds, args.out)
    runs = plan.runs_of(args.rows)
    store = Store(args.out)
    store.collect(plan.runs)
    out = Printer.of(args)
    if args.list:
        states = {one.name: {"state": store.state(one), "uses": [str(u) for u in plan.uses(one)]} for one in runs}
        out.result(states, listing(plan, runs, store))
        return
    if not args.report:
        check_boundaries(plan, store)
    try:
        refuse_remote(args.out)
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {args.out}: {error.strerror}; choose another with --out") from error
    with only_one(args.out, "filling"):
        store.begin([place for table in tables for place in table_files(table, args.out)])
        _run_and_report(args, plan, runs, store, out)


def _run_and_report(
    args: argparse.Namespace, plan: ExperimentPlan, runs: Sequence[Run], store: Store, out: Printer
) -> None:
    from crispseg.ablate.runner import Runner

    failed: list[Failure] = []
    not_timed: list[str] = []
    for line in starts(plan):
        (out.warn if line.startswith("warning") else out.say)(line)
    try:
        if not args.report:
            runner = Runner(store, args.together, out.say, args.keep == "all", args.minutes, args.sharing)
            failed = runner.run(runs, beside=plan.runs)
            if not args.no_bench:
                not_timed = _measure(plan, out)
    finally:
        _report(plan, store, out, with_bench=not args.no_bench)
    if failed or not_timed:
        raise UserError(what_failed(failed, len(runs), not_timed))


def what_failed(failed: Sequence[Failure], count: int, not_timed: Sequence[str]) -> str:
    """In one line where it is one thing; else a line for each cause, and below it the runs that ended by it."""
    causes: dict[str, list[Failure]] = {}
    for one in failed:
        causes.setdefault(one.why, []).append(one)
    lines = [f"{len(failed)} of {count} runs failed"] if failed else []
    if len(failed) == 1:
        (one,) = failed
        lines[0] += f"; {one.title}: {one.why} (see {one.log})"
    else:
        for why, some in causes.items():
            more = [f"    ... and {len(some) - _NAMED} more"] if len(some) > _NAMED else []
            lines += [f"  {why}", *(f"    {one.title} (see {one.log})" for one in some[:_NAMED]), *more]
    return "\n".join([*lines, *not_timed])


def starts(plan: ExperimentPlan) -> list[str]:
    """What the rows of each table start from, and what is doubtful about it."""
    lines = []
    for table in plan.tables:
        lines += [f"{table.name}: {line}" for line in plan.start_lines(table)]
        lines += [f"warning: {table.name}: {text}" for text in plan.warnings(table)]
    return lines


def listing(plan: ExperimentPlan, runs: Sequence[Run], store: Store) -> str:
    """The tables' starts; the distinct runs, how each stands and who needs it."""
    lines = starts(plan)
    for one in runs:
        lines += [f"{one.name}  {store.state(one)}", *(f"    {place}" for place in plan.uses(one))]
    finished = sum(store.find(one) is not None for one in runs)
    places = sum(len(plan.uses(one)) for one in runs)
    return "\n".join([*lines, f"{len(runs)} runs for {places} places; {finished} finished"])


def _measure(plan: ExperimentPlan, out: Printer) -> list[str]:
    """Which tables could not be timed, and why."""
    from crispseg.ablate.report import bench_file
    from crispseg.ablate.speed import measure

    problems = []
    for table in plan.tables:
        if table.bench is not None:
            try:
                measure(table, bench_file(table, plan.out), out.say)
            except UserError as error:  # such as a row's model that cannot be made, of which its run has told, too
                problems.append(f"{table.name} is not timed: {error}")
    return problems


def _report(plan: ExperimentPlan, store: Store, out: Printer, with_bench: bool) -> None:
    from crispseg.ablate.report import bench_file, report, result_file
    from crispseg.bench import read

    texts = []
    for table in plan.tables:
        path = bench_file(table, plan.out)
        timed = with_bench and table.bench is not None and path.exists()
        texts.append(report(table, plan, store, read(path) if timed else None))
    values = {table.name: json.loads(result_file(table, plan.out).read_text(encoding="utf-8")) for table in plan.tables}
    out.result(values, "\n".join(texts).rstrip("\n"))
