"""Every operator with kernels of its own against torch.compile's code for its formula, one by one.

  python -m benchmarks.kernels --warm --share 0/10               (all ten side by side: compiles, and times nothing)
  python -m benchmarks.kernels --out benchmarks/results/kernels_h200.json
  python -m benchmarks.kernels --only read_pixels --tiles infer.pixel_attention_kernels.READ "AttentionTiles(64, 4, 3)"
  python -m benchmarks.kernels --device cpu --small              (tries the script; there are no kernels on a CPU)

The cases (`training.py`, `inference.py`) have the shapes of crisp_tiny at 512 px: training with 16 images
in bf16 (autocasting, float32 weights; forward and backward together), inference with 1 and with 16. "kernel" is the
operator as the network calls it, "compiled" the same under CRISPSEG_OPS_BACKEND=torch and torch.compile, "torch" that
without the compiler. All give results of the kernel's types, and each is given the incoming gradients in the layout of
its own results.

Nothing is timed that is wrong: the relative error of every result and gradient against the formula in float64 must be
below 1e-2 or, where the formula itself is not that exact in this precision, at most twice the formula's. Times are of
20 calls in a CUDA graph, the median of replays; contenders take turns.

--tiles times the kernels with other values in the place of a name in a module below crispseg.ops, which is how their
work is cut into programs; a value is Python in that module.
"""

from __future__ import annotations

import argparse
import gc
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config

from benchmarks.kernels import contest
from benchmarks.kernels.contest import Case, Contenders, Contest, Tiles, all_cases, attempts, explained, measure, row
from benchmarks.kernels.network import Network
from crispseg.files import write_json, write_text
from crispseg.train.step import use_fast_kernels

COLUMNS = ("case", "way", "batch", "input")


def tidy(device: torch.device) -> None:
    torch.compiler.reset()  # each case is compiled for itself
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def table(rows: list[dict[str, Any]], contenders: Contenders) -> list[str]:
    """As Markdown."""
    columns = [*COLUMNS, *(f"{name} us" for name in contenders.names), "compiled / kernel", "errors"]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for found in rows:
        errors = ", ".join(f"{found['errors'][name]:.1e}" for name in contenders.names if name in found["errors"])
        values = [found[column] for column in columns[:-1]]
        lines.append("| " + " | ".join("" if value is None else str(value) for value in [*values, errors]) + " |")
    return lines


def verdict(rows: list[dict[str, Any]]) -> str:
    def named(chosen: list[dict[str, Any]]) -> str:
        return "; ".join(f"{r['case']}, batch {r['batch']}" for r in chosen) or "none"

    slower = [r for r in rows if r["compiled / kernel"] is not None and r["compiled / kernel"] < 1]
    untimed = [r for r in rows if r["compiled / kernel"] is None]
    open_ones = f" Not decided: {named(untimed)}." if untimed else ""
    return f"{len(rows)} rows.{open_ones} Slower than compiled code: {named(slower)}."


def chosen(cases: list[Case], names: list[str] | None, share: str) -> list[Case]:
    index, count = (int(word) for word in share.split("/"))
    named = [case for case in cases if not names or any(name in case.name for name in names)]
    return named[index::count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases whose names contain one of these")
    parser.add_argument(
        "--tiles", nargs="+", action="append", default=[], metavar=("PLACE", "VALUE"), help="other tiles, see above"
    )
    parser.add_argument("--share", default="0/1", metavar="I/N", help="every N-th case, from the I-th (from 0)")
    parser.add_argument("--warm", action="store_true", help="run every contender once, to fill the compilers' caches")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="crisp_nano at 64 px")
    parser.add_argument("--out", type=Path, help="write the rows as JSON, and beside it the table as Markdown")
    args = parser.parse_args()
    device = torch.device(args.device)
    use_fast_kernels(device)
    torch.backends.cudnn.benchmark = True
    # Choices between a compiled kernel's variants, made while ten processes share the GPU, are not for keeping.
    torch._inductor.config.autotune_local_cache = False
    contenders = Contenders([Tiles(place, value) for place, *values in args.tiles for value in values])
    rows = []
    began = time.perf_counter()
    for case in chosen(all_cases(Network(device, args.small)), args.only, args.share):
        start = time.perf_counter()
        try:
            if args.warm:
                list(attempts(Contest(case, device), contenders))
            else:
                rows.append(measure(case, device, contenders))
        except Exception as problem:
            print(f"{case.name}: {explained(problem)}", flush=True)
            rows.append(row(case, dict.fromkeys(contenders.names, "failed"), {}))
        tidy(device)
        print(f"{case.name}, batch {case.batch}: {time.perf_counter() - start:.1f} s", flush=True)
    print(f"{time.perf_counter() - began:.0f} s")
    if not args.warm:
        report(rows, device, args.out, contenders)


def report(rows: list[dict[str, Any]], device: torch.device, out: Path | None, contenders: Contenders) -> None:
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    lines = [*table(rows, contenders), "", verdict(rows)]
    print("\n".join(lines))
    if out is None:
        return
    command = shlex.join(["python", "-m", "benchmarks.kernels", *sys.argv[1:]])
    write_json(out, {"command": command, "gpu": gpu, "torch": torch.__version__, "bound": contest.BOUND, "rows": rows})
    named = ", ".join(contenders.names)
    about = f"{gpu}, torch {torch.__version__}. Errors: of {named}, the worst of results and gradients."
    heading = ["# Kernels against torch.compile's code", "", f"`{command}`", "", about, ""]
    write_text(out.with_suffix(".md"), "\n".join([*heading, *lines]) + "\n")


if __name__ == "__main__":
    main()
