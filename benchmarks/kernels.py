"""Every operator with kernels of its own against torch.compile's code for its formula, one by one.

  python benchmarks/kernels.py --warm --share 0/10               (all ten side by side: compiles, and times nothing)
  python benchmarks/kernels.py --out benchmarks/results/kernels_h200.json
  python benchmarks/kernels.py --only read_pixels --tiles infer.pixel_attention_kernels.READ "Tiles(64, 4, 3)"
  python benchmarks/kernels.py --device cpu --small              (tries the script; there are no kernels on a CPU)

The cases (`kernel_training.py`, `kernel_inference.py`) have the shapes of crisp_tiny at 512 px: training with 16 images
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
import contextlib
import copy
import functools
import gc
import importlib
import itertools
import math
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch._inductor.config
from gpu_time import in_turn, record  # beside this file
from kernel_inference import INFERENCE
from kernel_network import Network, Place, Work
from kernel_training import TRAINING
from torch import Tensor

from crispseg import ops
from crispseg.bench.check import relative_error
from crispseg.files import write_json, write_text
from crispseg.train.step import use_fast_kernels

BOUND = 1e-2
SLACK = 1e-4  # beyond twice the formula's error
SMALLEST = 1e-2  # gradient, in proportion to all of them, whose relative error is asked for
CONTENDERS = ("kernel", "compiled", "torch")
COLUMNS = ("case", "way", "batch", "input")
BACKWARD = "forward+backward"
CPU_RUNS = 3

_IMAGES = 16  # of a training step, and of the larger of two batches for inference
_LEFT_OUT = {("conv_norm_mlp, stage 2", 1)}  # the network does not call the kernel, as pixels are too few

Tensors = tuple[Tensor, ...]
Call = Callable[[], Tensors]


class Case(NamedTuple):
    name: str
    way: str  # "forward" (inference) or "forward+backward" (training)
    batch: int
    make: Callable[[], Work]


def all_cases(net: Network) -> list[Case]:
    many = 2 if net.size < 512 else _IMAGES
    found = []
    ways = (TRAINING, BACKWARD, (many,)), (INFERENCE, "forward", (1, many))
    for works, way, batches in ways:
        for name, make, stages in works:
            for stage, batch in itertools.product(stages, batches):
                label = f"{name}, stage {stage}" if len(stages) > 1 else name
                if (label, batch) not in _LEFT_OUT:
                    found.append(Case(label, way, batch, functools.partial(make, net, Place(batch, stage))))
    return sorted(found, key=lambda case: (case.name, case.way, case.batch))


class Tiles:
    """Another value of a name in a kernel's module, as a contender."""

    def __init__(self, place: str, value: str) -> None:
        module, _, self.name = f"crispseg.ops.{place}".rpartition(".")
        self.module = importlib.import_module(module)
        self.value = eval(value, vars(self.module))
        self.title = f"{self.name} = {value}"

    def __call__(self) -> contextlib.AbstractContextManager[Any]:
        return mock.patch.object(self.module, self.name, self.value)


class Contenders:
    """The three ways to compute a case, and the kernels with other tiles."""

    def __init__(self, tiles: Sequence[Tiles] = ()) -> None:
        self.tiles = {tile.title: tile for tile in tiles}
        self.names = (*CONTENDERS, *self.tiles)

    def backend(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """In which the contender is called."""
        if name in self.tiles:
            return self.tiles[name]()
        return contextlib.nullcontext() if name == "kernel" else ops.only("torch")


def function(work: Work, device: str, casts: bool, dtypes: Sequence[torch.dtype] | None = None) -> Call:
    """The work's results, in these types. Autocasting is turned on within: around a compiled function it would be in
    force for the backward pass, too, which torch's operations are spared, and even for sums kept in float32."""

    def compute() -> Tensors:
        with torch.autocast(device, torch.bfloat16, enabled=casts):
            found = work.call(work.module, *work.inputs, *work.fixed)
        results = (found,) if isinstance(found, Tensor) else tuple(found)
        return results if dtypes is None else tuple(x.to(t) for x, t in zip(results, dtypes, strict=True))

    return compute


class Contest:
    """One case: the calls of its contenders, on the same numbers."""

    def __init__(self, case: Case, device: torch.device) -> None:
        torch.manual_seed(0)
        self.case, self.device = case, device
        self.work = case.make()
        self.trains = case.way == BACKWARD
        self.casts = self.trains and self.work.autocast
        candidates = [*self.work.inputs, *self.work.module.parameters()] if self.trains else []
        for x in candidates:
            x.requires_grad_()
        results = self._results(function(self.work, device.type, self.casts))
        self.dtypes = [x.dtype for x in results]
        self.incoming = [torch.randn(x.shape, device=device).bfloat16().to(x.dtype) for x in results]
        self.leaves = self._used(results, candidates)

    @property
    def size(self) -> str:
        """Of the first input, or of a weight where there is none."""
        return "x".join(str(n) for n in next(iter((*self.work.inputs, *self.work.module.parameters()))).shape)

    def _used(self, results: Tensors, candidates: list[Tensor]) -> list[int]:
        """The numbers of the inputs and parameters that get a gradient."""
        if not self.trains:
            return []
        found = torch.autograd.grad(results, candidates, self.incoming, allow_unused=True)
        return [i for i, gradient in enumerate(found) if gradient is not None]

    def _results(self, compute: Call) -> Tensors:
        with torch.set_grad_enabled(self.trains):
            return compute()

    def call(self, name: str) -> Call:
        """Results, and gradients in training. To be called within the contender's backend."""
        compute = function(self.work, self.device.type, self.casts, self.dtypes)
        compute = torch.compile(compute, dynamic=False) if name == "compiled" else compute
        return self._complete(self.work, compute)

    def truth(self) -> Tensors:
        """In float64."""
        work = self.work._replace(
            module=copy.deepcopy(self.work.module).double(),
            inputs=tuple(x.detach().double().requires_grad_(x.requires_grad) for x in self.work.inputs),
            fixed=tuple(x.double() if x.is_floating_point() else x for x in self.work.fixed),
        )
        with ops.only("torch"), torch.backends.cudnn.flags(enabled=True, benchmark=False):
            return self._complete(work, function(work, self.device.type, casts=False))()

    def errors(self, found: Tensors, truth: Tensors) -> list[float]:
        """Of each result and gradient. A gradient counts as at least a hundredth of all: what little is left where most
        has cancelled out, as in some of DCO's gates, is as uncertain as what it was left of."""
        count = len(self.dtypes)
        least = max(SMALLEST * sum(float(x.norm()) ** 2 for x in truth[count:]) ** 0.5, 1e-300)
        floors = [1e-300] * count + [least] * (len(truth) - count)
        return [relative_error((x,), (y,), floor) for x, y, floor in zip(found, truth, floors, strict=True)]

    def _complete(self, work: Work, compute: Call) -> Call:
        if not self.trains:
            return lambda: self._results(compute)
        candidates = [*work.inputs, *work.module.parameters()]
        leaves = [candidates[i] for i in self.leaves]
        # Compiled code would copy gradients that are laid out in another way than its results.
        likes = self._results(compute)
        incoming = [torch.empty_like(x).copy_(g) for x, g in zip(likes, self.incoming, strict=True)]
        del likes

        def both() -> Tensors:
            results = self._results(compute)
            gradients = torch.autograd.grad(results, leaves, incoming)
            return *(x.detach() for x in results), *gradients

        return both


def attempts(contest: Contest, contenders: Contenders) -> Iterator[tuple[str, Call | str]]:
    """Each contender's call, run once already, or what became of it."""
    for name in contenders.names:
        try:
            with contenders.backend(name):
                call = contest.call(name)
                call()
            yield name, call
        except Exception as problem:  # the others may do better
            print(f"{contest.case.name}, {name}: {explained(problem)}", flush=True)
            yield name, "failed"


def explained(problem: Exception) -> str:
    return f"{type(problem).__name__}: {(str(problem).strip().splitlines() or [''])[0][:200]}"


def measure(case: Case, device: torch.device, contenders: Contenders) -> dict[str, Any]:
    contest = Contest(case, device)
    truth = contest.truth()
    calls: dict[str, Call] = {}
    said: dict[str, Any] = {}
    for name, call in attempts(contest, contenders):
        if isinstance(call, str):
            said[name] = call
        else:
            calls[name] = call
    each = {}
    for name, call in calls.items():
        with contenders.backend(name):
            each[name] = contest.errors(call(), truth)
    del truth
    right = {name: call for name, call in calls.items() if is_right(each[name], each.get("torch"))}
    for name in calls.keys() - right.keys():
        print(f"{case.name}, {name}: errors {', '.join(f'{e:.1e}' for e in each[name])}", flush=True)
        said[name] = "wrong"
    said |= times(right, device, contenders)
    return row(case, said, {name: max(errors) for name, errors in each.items()}, contest.size)


def is_right(errors: list[float], of_formula: list[float] | None) -> bool:
    allowed = [max(BOUND, 2 * e + SLACK) if math.isfinite(e) else BOUND for e in of_formula or [0.0] * len(errors)]
    return all(error < bound for error, bound in zip(errors, allowed, strict=True))


def row(case: Case, said: dict[str, Any], errors: dict[str, float], size: str = "") -> dict[str, Any]:
    """`said`: microseconds of each contender, or what became of it."""
    ours, theirs = said["kernel"], said.get("compiled")
    timed = isinstance(ours, float) and isinstance(theirs, float)
    return {
        "case": case.name,
        "way": case.way,
        "batch": case.batch,
        "input": size,
        **{f"{name} us": said[name] for name in said},
        "compiled / kernel": round(theirs / ours, 2) if timed else None,
        "errors": {name: float(f"{error:.1e}") for name, error in errors.items()},
    }


def times(calls: dict[str, Call], device: torch.device, contenders: Contenders) -> dict[str, Any]:
    """Microseconds of each, or that it could not be recorded."""
    if device.type != "cuda":
        return {name: round(1e6 * _seconds(contenders.backend(name), call), 2) for name, call in calls.items()}
    graphs, said = {}, {}
    for name, call in calls.items():
        try:
            with contenders.backend(name):
                graphs[name] = record(call)
        except Exception as problem:
            print(f"{name}: {explained(problem)}", flush=True)
            said[name] = "not recorded"
    return said | {name: round(took, 2) for name, took in in_turn(graphs).items()}


def _seconds(backend: contextlib.AbstractContextManager[Any], call: Call) -> float:
    taken = []
    with backend:
        for _ in range(CPU_RUNS):
            begin = time.perf_counter()
            call()
            taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


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
    command = shlex.join(["python", "benchmarks/kernels.py", *sys.argv[1:]])
    write_json(out, {"command": command, "gpu": gpu, "torch": torch.__version__, "bound": BOUND, "rows": rows})
    named = ", ".join(contenders.names)
    about = f"{gpu}, torch {torch.__version__}. Errors: of {named}, the worst of results and gradients."
    heading = ["# Kernels against torch.compile's code", "", f"`{command}`", "", about, ""]
    write_text(out.with_suffix(".md"), "\n".join([*heading, *lines]) + "\n")


if __name__ == "__main__":
    main()
