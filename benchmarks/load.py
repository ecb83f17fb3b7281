"""How much a busy neighbour costs: training, evaluation, folding and start-up beside no, one and two busy loops.

    python benchmarks/load.py --steps 20 --out benchmarks/results/load

Each figure is the median of --repeats processes, the two policies in turn: with crispseg imported first (OpenMP sleeps
beside others, else spins shortly) and with OpenMP's own (torch imported first). The bars: one neighbour costs at most
2.5 times, and without neighbours our policy is at most 2 % slower. The load of the machine before each figure is
recorded: above 0.2 it was not quiet.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crispseg.files import write_json, write_text

_START = {"ours": "import crispseg, torch", "torch's own": "import torch, crispseg"}
_WORK = {
    "train": """
model = crispseg.create_model("crisp_nano", 6).train()
optimiser = torch.optim.AdamW(model.parameters())
x, y = torch.rand(2, 3, 256, 256), torch.randint(0, 6, (2, 256, 256))
for step in range(STEPS + 1):
    if step == 1: start = time.perf_counter()
    torch.nn.functional.cross_entropy(model(x).logits, y).backward()
    optimiser.step(); optimiser.zero_grad()
""",
    "evaluate": """
model = crispseg.create_model("crisp_nano", 6).eval().fused()
x = torch.rand(1, 3, 512, 512)
model(x); start = time.perf_counter()
for step in range(STEPS): model(x)
""",
    "fuse": """
model = crispseg.create_model("crisp_nano", 6).eval()
start = time.perf_counter(); model.fused()
""",
    "start": """
start = BEGUN; crispseg.create_model("crisp_nano", 6)
""",
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--work", nargs="+", choices=tuple(_WORK), default=list(_WORK))
    parser.add_argument("--limit", type=float, default=300.0, metavar="S", help="given up after so many (%(default)s)")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = [row for work in args.work for count in args.neighbours for row in measure(work, count, args)]
    command = f"python benchmarks/load.py {' '.join(sys.argv[1:])}".strip()
    text = table(rows, command)
    print(text)
    if args.out is not None:
        machine = {"cores": os.cpu_count(), "system": platform.platform(), "command": command}
        write_json(args.out.with_suffix(".json"), {**machine, "rows": rows})
        write_text(args.out.with_suffix(".md"), text)


def measure(work: str, neighbours: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row per policy; what else goes on in the machine meets both alike."""
    load = os.getloadavg()[0]
    seconds: dict[str, list[float]] = {policy: [] for policy in _START}
    with busy(neighbours):
        for _ in range(args.repeats):
            for policy, found in seconds.items():
                if math.inf not in found:  # what was not finished once is not waited for again
                    found.append(once(work, policy, args.steps, args.limit))
    rows = [
        {
            "work": work,
            "neighbours": neighbours,
            "policy": policy,
            "seconds": None if math.inf in found else round(statistics.median(found), 3),  # None: not finished
            "load before": round(load, 2),
        }
        for policy, found in seconds.items()
    ]
    for row in rows:
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def once(work: str, policy: str, steps: int, limit: float) -> float:
    """In a process of its own; infinite when it is not finished in time."""
    bare = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "GOMP_SPINCOUNT")}
    head = f"import time; BEGUN = time.perf_counter(); STEPS = {steps}\n{_START[policy]}\n"
    code = f"{head}{_WORK[work]}\nprint(time.perf_counter() - start)"
    try:
        done = subprocess.run([sys.executable, "-c", code], env=bare, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return float("inf")
    if done.returncode:
        raise RuntimeError(done.stderr)
    return float(done.stdout)


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def table(rows: list[dict[str, Any]], command: str) -> str:
    """Seconds, and how many times that of the same policy without neighbours."""
    alone = {(r["work"], r["policy"]): r["seconds"] for r in rows if r["neighbours"] == 0}
    lines = ["# Busy neighbours", "", f"`{command}`, {os.cpu_count()} cores. Seconds; times of no neighbour.", ""]
    lines += ["| work | neighbours | OpenMP's policy | seconds | times | load before |", "|---|---|---|---|---|---|"]
    for row in rows:
        quiet = alone.get((row["work"], row["policy"]))
        times = f"{row['seconds'] / quiet:.2f}" if quiet and row["seconds"] else ""
        seconds = "not finished" if row["seconds"] is None else row["seconds"]
        facts = (row["work"], row["neighbours"], row["policy"], seconds, times, row["load before"])
        lines.append("| " + " | ".join(map(str, facts)) + " |")
    return "\n".join([*lines, "", *verdicts(rows)]) + "\n"


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """A line per bar and work."""
    seconds = {(row["work"], row["neighbours"], row["policy"]): row["seconds"] for row in rows}
    lines = []
    for work in dict.fromkeys(row["work"] for row in rows):
        quiet, other, beside = (seconds.get((work, *key)) for key in ((0, "ours"), (0, "torch's own"), (1, "ours")))
        if quiet and beside:
            lines.append(f"- {work}: one neighbour costs {beside / quiet:.2f} times (bar: 2.5)")
        if quiet and other:
            lines.append(f"- {work}: without neighbours ours takes {100 * (quiet / other - 1):+.1f} % (bar: +2)")
    return lines


if __name__ == "__main__":
    main()
