"""Pretrain backbones side by side on one GPU, each in as many steps as fit into the time.

  python benchmarks/pretraining.py DATA OUT --minutes 4.5 vssd_nano vssd_tiny
  python benchmarks/pretraining.py DATA OUT --minutes 4.5 vssd_nano vssd_tiny --words ema=0.998 teacher.weight=2
  python benchmarks/pretraining.py DATA OUT --minutes 4.5 vssd_nano vssd_nano+model.options.fusion=selective

First a short trial of each, side by side too, compiles the kernels and measures the speed at every size; then the runs
themselves: OUT/NAME, with the backbone in OUT/NAME/backbone. OUT/pretraining.json has speeds, steps and scores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_TRIAL_STEPS, _TRIAL_LOG = 60, 5
_SIZES, _SHARES = (96,), (1.0,)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="holds the sets of the config")
    parser.add_argument("out", type=Path)
    parser.add_argument("models", nargs="+", metavar="MODEL[+key=value]")
    parser.add_argument("--config", default="taught")
    parser.add_argument("--minutes", type=float, default=4.5, help="of the runs themselves (%(default)s)")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--sizes", type=int, nargs="+", default=_SIZES)
    parser.add_argument("--shares", type=float, nargs="+", default=_SHARES)
    parser.add_argument("--words", nargs="*", default=[], help="more key=value words of the runs")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    trials = side_by_side({name: trial_words(args, name) for name in args.models}, args.out)
    speeds = {name: read_speeds(args.out / f"trial-{name}", args.sizes) for name in args.models}
    if not all(speeds.values()):  # the teacher's package may be missing: better backbones without it than none
        print("a trial failed; once more without the teacher", flush=True)
        args.words.append("teacher.build=null")
        for name in args.models:
            shutil.rmtree(args.out / f"trial-{name}", ignore_errors=True)
        trials = side_by_side({name: trial_words(args, name) for name in args.models}, args.out)
        speeds = {name: read_speeds(args.out / f"trial-{name}", args.sizes) for name in args.models}
    print(f"trials took {time.monotonic() - started:.0f} s; images/s: {json.dumps(speeds)}", flush=True)
    steps = {
        name: steps_in(60 * args.minutes, args.batch, speeds[name], args.shares) for name in args.models if speeds[name]
    }
    runs = side_by_side({name: run_words(args, name, steps[name]) for name in steps}, args.out)
    results = {name: read_result(args.out / name) for name in steps}
    values = {"speeds": speeds, "steps": steps, "ended": {"trials": trials, "runs": runs}, "results": results}
    (args.out / "pretraining.json").write_text(json.dumps(values, indent=2) + "\n")
    print(json.dumps(values, indent=2))
    return 0 if len(results) == len(args.models) and all(results.values()) else 1


def common_words(args: argparse.Namespace, name: str) -> list[str]:
    sizes, shares = json.dumps(list(args.sizes)), json.dumps(list(args.shares))
    model, *own = name.split("+")
    words = [args.config, f"data={args.data}", f"model={model}", f"batch_size={args.batch}", f"sizes={sizes}"]
    return [*words, f"size_shares={shares}", f"cache={args.out / 'cache'}", *args.words, *own]


def trial_words(args: argparse.Namespace, name: str) -> list[str]:
    equal = json.dumps([1] * len(args.sizes))
    words = [f"schedule.steps={_TRIAL_STEPS}", f"log_every={_TRIAL_LOG}", "score_images=300", f"size_shares={equal}"]
    return [*common_words(args, name), *words, "score_every=100000", f"out={args.out / f'trial-{name}'}"]


def run_words(args: argparse.Namespace, name: str, steps: int) -> list[str]:
    words = [f"schedule.steps={steps}", f"score_every={max(steps // 3, 1)}", "save_every=100000"]
    return [*common_words(args, name), *words, f"out={args.out / name}"]


def side_by_side(commands: dict[str, list[str]], out: Path) -> dict[str, int]:
    """Exit codes; each process writes a log of its own."""
    running = {}
    for name, words in commands.items():
        log = (out / f"{words[-1].partition('=')[2].rpartition('/')[2]}.log").open("w")
        command = [sys.executable, "-m", "crispseg.cli.main", "pretrain", *words]
        running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=dict(os.environ))
    return {name: process.wait() for name, process in running.items()}


def read_speeds(run: Path, sizes: Sequence[int]) -> dict[str, float]:
    """Images per second at each size: the best of the short records, as the first ones compile."""
    found: dict[str, float] = {}
    path = run / "metrics.jsonl"
    for line in path.read_text().splitlines() if path.exists() else []:
        record = json.loads(line)
        if "images_per_second" in record:
            size = str(record["size"])
            found[size] = max(found.get(size, 0.0), record["images_per_second"])
    return found if set(found) == {str(size) for size in sizes} else {}


def steps_in(seconds: float, batch: int, speeds: dict[str, float], shares: Sequence[float]) -> int:
    per_step = sum(share * batch / speed for share, speed in zip(shares, speeds.values(), strict=True)) / sum(shares)
    return max(int(seconds / per_step), 1)


def read_result(run: Path) -> Any:
    path = run / "result.json"
    return json.loads(path.read_text()) if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
