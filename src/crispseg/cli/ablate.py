"""Train a table of experiments, with several seeds, and print it with mean and spread.

  crisp ablate configs/tables/dco.yaml data=data/potsdam --data configs/potsdam.yaml --seeds 0 1 2
  crisp ablate configs/tables/components.yaml schedule.steps=500 --data my_folder --size nano

A row changes some keys of the data set's config (or of the defaults, for a folder); key=value words change all rows.
Interrupted, the same command goes on: finished runs are kept, others are resumed. Writes table.md and table.json.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

from crispseg.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", type=Path, help="a file of configs/tables/, or one like them")
    parser.add_argument("words", nargs="*", metavar="key=value", help="keys of the config, for all rows")
    parser.add_argument("--data", required=True, metavar="CONFIG|FOLDER", help="a config YAML, or a data folder")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="default: 0")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time on this machine")
    parser.add_argument("--size", help="nano, micro, tiny, small or base, where the table leaves it open")
    parser.add_argument("--out", type=Path, help="default: runs/ablate-TABLE-DATA")


def run(args: argparse.Namespace) -> None:
    from crispseg.train.ablate import Runner, plan_jobs, report
    from crispseg.train.table import read_table

    if args.jobs < 1:
        raise UserError(f"--jobs must be at least 1, not {args.jobs}")
    table = read_table(args.table, args.size)
    out = args.out or Path("runs") / f"ablate-{args.table.stem}-{Path(args.data).stem}"
    jobs = plan_jobs(table, base_values(args.data), args.words, args.seeds, out)
    problems = Runner(args.jobs, functools.partial(print, flush=True)).run(jobs)
    print(report(table, jobs, out), end="")
    if problems:
        raise UserError(f"{len(problems)} of {len(jobs)} runs failed; " + "; ".join(problems))


def base_values(data: str) -> dict[str, Any]:
    """What all rows share: a config file's values, or a data folder."""
    from crispseg.config import read_yaml

    return read_yaml(data) if data.endswith((".yaml", ".yml")) else {"data": {"path": data}}
