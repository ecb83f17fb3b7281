"""The head's kernels against torch.compile's code for the same formulas, in CUDA graphs, checked before they are timed.

python benchmarks/head_kernels.py --out head_kernels.json

With --sweep the kernels that take most of the time are timed with other tiles instead, to choose their defaults.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import shlex
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crispseg import ops
from crispseg.bench.check import relative_error
from crispseg.bench.contest import run_twice
from crispseg.bench.modes import Recorder, Runner
from crispseg.files import write_json
from crispseg.ops import attend, matching, resizing

BOUND = 1e-2
CLASSES, HEADS, DIM, PROTOTYPES, SIDE = 6, 8, 256, 3, 128  # of a CRISP-tiny at 512 px
WARMUP, REPEATS = 5, 30


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    function: Callable[..., Tensor]
    tensors: tuple[Tensor, ...]
    rest: tuple[Any, ...] = ()
    bytes: int = 0  # moved if each large map is read or written once


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def cases(batch: int) -> list[Case]:
    length = SIDE * SIDE
    pixels = draw(batch, length, DIM)
    keys, values = draw(2, batch, CLASSES, HEADS, DIM) / 16
    added, norm = draw(batch, CLASSES, HEADS), tuple(draw(3, DIM))
    tokens = draw(2, batch, CLASSES, DIM)
    finer, coarser = draw(batch, SIDE, SIDE, DIM), draw(batch, SIDE // 2, SIDE // 2, DIM)
    size = pixels.nbytes
    hyper = (draw(batch, CLASSES, DIM), draw(CLASSES, DIM, DIM) / 16, draw(CLASSES, DIM))
    bank = (draw(batch, 4 * CLASSES), draw(CLASSES, 4, DIM))
    qkv = (draw(batch, CLASSES, 3 * DIM),)
    return [
        Case("tokens_attend_pixels", attend.tokens_attend_pixels, (keys, pixels), bytes=size),
        Case(
            "pixels_attend_tokens",
            attend.pixels_attend_tokens,
            (pixels, keys, added, values, *norm),
            (1e-5,),
            bytes=2 * size,
        ),
        Case(
            "best_cosines",
            matching.best_cosines,
            (pixels, draw(batch, CLASSES, PROTOTYPES, DIM)),
            (10.0,),
            bytes=size + 4 * batch * CLASSES * length,
        ),
        Case("resize_add", resizing.resize_add, (finer, coarser), bytes=2 * size + coarser.nbytes),
        Case("add_bias + ReLU", _bias_relu, (finer, norm[0]), bytes=2 * size),
        Case("add_norm", attend.add_norm, (*tokens, *norm[:2]), (1e-5,)),
        Case("attend_few", attend.attend_few, qkv, (HEADS,)),
        Case("grouped_product", matching.grouped_product, hyper, (True,)),
        Case("max_and_mean", matching.max_and_mean, (draw(batch, 256, DIM) + 0.5,)),
        Case("mix_candidates", matching.mix_candidates, bank),
    ]


def _bias_relu(x: Tensor, bias: Tensor) -> Tensor:
    return resizing.add_bias_(x * 1, bias, None, True)  # a copy first: the same input serves every run


def formula(case: Case) -> Callable[..., Tensor]:
    """The function's plain torch, which is what it runs where kernels do not apply."""

    def run(*tensors: Tensor) -> Tensor:
        return case.function(*tensors, *case.rest)

    return run


def prepare(case: Case, recorder: Recorder) -> tuple[dict[str, Runner], dict[str, float]]:
    run = formula(case)
    truth = run(*(x.double() for x in case.tensors))
    runners: dict[str, Runner] = {}
    errors: dict[str, float] = {}
    for name in ("kernel", "compiled", "torch"):
        with contextlib.nullcontext() if name == "kernel" else ops.only("torch"):
            function = torch.compile(formula(case), dynamic=False) if name == "compiled" else run
            runner = recorder.replayed(lambda *x, f=function: (f(*x),), case.tensors)
        runner.place(case.tensors)
        errors[name] = relative_error(runner.run(), (truth,))
        if errors[name] <= BOUND:
            runners[name] = runner
    return runners, errors


def measure(case: Case, batch: int) -> dict[str, Any]:
    runners, errors = prepare(case, Recorder())
    times: dict[str, list[float]] = {name: [] for name in runners}
    for turn in range(WARMUP + REPEATS):
        for name, runner in runners.items():
            took = run_twice(runner)
            if turn >= WARMUP:
                times[name].append(1e3 * took)
    row: dict[str, Any] = {"operation": case.name, "batch": batch}
    for name in errors:
        row[f"{name} us"] = round(statistics.median(times[name]), 2) if name in times else "wrong"
        row[f"{name} error"] = f"{errors[name]:.1e}"
    if case.bytes and "kernel" in times:
        row["kernel GB/s"] = round(case.bytes / statistics.median(times["kernel"]) / 1e3)
    return row


def sweep(batch: int) -> list[dict[str, Any]]:
    """The three kernels that read the whole pixel map, with each of a few tiles; a wrong or failing one says so."""
    from crispseg.ops import attend_kernels, matching_kernels
    from crispseg.ops.attend_kernels import Tiles

    places = {
        "tokens_attend_pixels": (attend_kernels, "READ"),
        "pixels_attend_tokens": (attend_kernels, "WRITE"),
        "best_cosines": (matching_kernels, "MATCH"),
    }
    tried = [Tiles(p, w, s) for p in (32, 64, 128) for w in (4, 8) for s in (1, 2, 3)]
    rows = []
    for case in cases(batch):
        if case.name not in places:
            continue
        module, name = places[case.name]
        default = getattr(module, name)
        for tiles in tried:
            setattr(module, name, tiles)
            try:
                found: Any = round(_kernel_time(case), 2)
            except Exception as problem:  # too much shared memory for this GPU
                found = type(problem).__name__
            rows.append({"operation": case.name, "batch": batch, "tiles": tuple(tiles), "us": found})
            print(*rows[-1].values(), "(default)" if tiles == default else "", flush=True)
        setattr(module, name, default)
    return rows


def _kernel_time(case: Case) -> float:
    run = formula(case)
    runner = Recorder().replayed(lambda *x: (run(*x),), case.tensors)
    runner.place(case.tensors)
    if relative_error(runner.run(), (run(*(x.double() for x in case.tensors)),)) > BOUND:
        raise ValueError("wrong")
    return statistics.median(1e3 * run_twice(runner) for _ in range(WARMUP + REPEATS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--only", nargs="+", help="operations whose names contain one of these")
    parser.add_argument("--sweep", action="store_true", help="other tiles")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    with torch.no_grad():
        for batch in args.batch:
            if args.sweep:
                rows += sweep(batch)
                continue
            for case in cases(batch):
                if args.only and not any(word in case.name for word in args.only):
                    continue
                rows.append(measure(case, batch))
                print("  ".join(f"{key}: {value}" for key, value in rows[-1].items()), flush=True)
    facts = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "precision": "bf16"}
    write_json(args.out, {"command": shlex.join(["python", *sys.argv]), **facts, "rows": rows})


if __name__ == "__main__":
    main()
