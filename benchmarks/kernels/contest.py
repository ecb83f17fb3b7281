"""One case of an operator: its contenders on the same numbers, checked, then timed."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from benchmarks.kernels.gpu_time import in_turn, record
from benchmarks.kernels.inference import INFERENCE
from benchmarks.kernels.network import Network, Place, Work
from benchmarks.kernels.training import TRAINING
from crispseg import ops
from crispseg.bench.check import relative_error

BOUND = 1e-2
SLACK = 1e-4  # beyond twice the formula's error
SMALLEST = 1e-2  # gradient, in proportion to all of them, whose relative error is asked for
CONTENDERS = ("kernel", "compiled", "torch")
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
