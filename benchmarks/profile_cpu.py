"""Where fused models spend their time on a CPU: milliseconds of each torch operator in a run, as Markdown.

    python benchmarks/profile_cpu.py --threads 2 --out benchmarks/results/profile_cpu.md

Float32, one image, after a check of the output against the model's own. Time is what an operator takes itself, without
those that it calls; all of them together are the run. docs/explanation/speed.md has the settings of the allocator.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

import crispseg
from crispseg.bench.check import NETWORK_BOUNDS, relative_error
from crispseg.bench.environment import describe, sentence
from crispseg.bench.settings import choose
from crispseg.files import write_text

WARM_UP, RUNS = 3, 10
LEAST = 0.01  # share of an operator that has a line of its own


@torch.no_grad()
def operators(name: str, size: int) -> list[tuple[str, float, int]]:
    """Name, milliseconds and calls of a run; the most first."""
    torch.manual_seed(0)
    model = crispseg.create_model(name).eval()
    fused = model.fused()
    image = torch.randn(1, 3, size, size).contiguous(memory_format=torch.channels_last)
    error = relative_error((fused(image),), (model(image),))
    if error > NETWORK_BOUNDS["fp32"]:
        raise SystemExit(f"{name}: relative error {error:.1e}; not timed")
    for _ in range(WARM_UP):
        fused(image)
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        for _ in range(RUNS):
            fused(image)
    found = [(e.key, e.self_cpu_time_total / 1e3 / RUNS, e.count // RUNS) for e in trace.key_averages()]
    return sorted(found, key=lambda row: -row[1])


def table(name: str, rows: list[tuple[str, float, int]]) -> str:
    total = sum(row[1] for row in rows)
    lines = [f"## {name}: {total:.1f} ms", "", "| ms | share | calls | operator |", "|---|---|---|---|"]
    shown = [row for row in rows if row[1] >= LEAST * total]
    others = rows[len(shown) :]
    rest = (f"{len(others)} others", sum(row[1] for row in others), sum(row[2] for row in others))
    lines += [f"| {ms:.1f} | {ms / total:.0%} | {calls} | {key} |" for key, ms, calls in [*shown, rest]]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["crisp_nano", "crisp_tiny", "unetformer_r18"])
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    command = shlex.join(["python", "benchmarks/profile_cpu.py", *sys.argv[1:]])
    heading = [f"# Fused models on a CPU, {args.size} px\n", f"`{command}`\n", sentence(describe(choose("cpu"))) + "\n"]
    text = "\n".join([*heading, *(table(name, operators(name, args.size)) for name in args.models)])
    write_text(args.out, text)
    print(text)


if __name__ == "__main__":
    main()
