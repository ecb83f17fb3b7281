"""The depthwise 3x3 kernels against cuDNN (channels-last, benchmark on) and torch.compile's code, on a CUDA device.

  python benchmarks/depthwise_kernels.py --out benchmarks/results/depthwise_kernels.json
  python benchmarks/depthwise_kernels.py --sweep --forward --kind silu halve norm

The maps are those of crisp_tiny at 512 px, in bf16 with float32 weights, packed: "norm" is a block's residual
convolution with LayerNorm (inference), "residual" the same without the norm (training), "silu" the mixer's, a view into
the output of in_proj, "halve" the strided one between stages. Twenty calls are recorded into a CUDA
graph, so that launching costs nothing; contenders take turns. Nothing is timed before its result and its gradients
agree with float64. GB/s counts each map once for each time it must be read or written.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gpu_time import in_turn, record  # beside this file
from torch import Tensor
from torch.nn import functional

from crispseg.files import write_json
from crispseg.ops.maps import depthwise_launch as launch
from crispseg.ops.maps.depthwise import depthwise3x3, depthwise3x3_norm, packed

Function = Callable[..., tuple[Tensor, ...]]

BOUND = 1e-2
STAGES = ((128, 64, 256, 386), (64, 128, 384, 644), (32, 256, 640, 1160), (16, 512, 1152, 2192))  # side and widths
SHAPES = [(8, 64, 4), (16, 64, 4), (16, 64, 8), (8, 128, 4)]  # pixels, channels, warps


class Case(NamedTuple):
    kind: str
    batch: int
    side: int
    channels: int
    backward: bool

    @property
    def bytes_moved(self) -> int:
        """x in, y out (two for norm); then dy and x in, dx out."""
        x = 2 * self.batch * self.side**2 * self.channels
        y = x // 4 if self.kind == "halve" else x
        return x + y * (2 if self.kind == "norm" else 1) + (y + 2 * x if self.backward else 0)


def cases(batches: list[int], kinds: list[str], forward: bool) -> list[Case]:
    found = []
    for kind, batch, (side, width, mixed, _) in itertools.product(kinds, batches, STAGES):
        if kind == "norm":
            found.append(Case(kind, batch, side, width, False))
        elif kind == "residual":
            found.append(Case(kind, batch, side, width, True))
        elif kind == "silu" or side > 16:
            channels = mixed if kind == "silu" else 8 * width
            found += [Case(kind, batch, side, channels, backward) for backward in (False, True)]
    return [case for case in found if not (forward and case.backward)]


def inputs(case: Case) -> list[Tensor]:
    """x, weight, bias, the norm's weight and bias, and the gradient that comes back."""
    shape, margin = (case.batch, case.side, case.side), 0
    if case.kind == "silu":
        wide = next(stage[3] for stage in STAGES if stage[2] == case.channels)
        margin = -(-wide // 64) * 64 - case.channels  # as the block's kernel lays out what in_proj gives
    x = torch.randn(*shape, case.channels + margin, device="cuda").bfloat16()[..., margin // 8 * 8 :]
    # Exact in bf16: rounding them, as cuDNN must, would push some of ReLU's arguments over zero.
    weight = packed((torch.randn(case.channels, 1, 3, 3, device="cuda") / 3).bfloat16().float())
    vectors = torch.randn(3, case.channels, device="cuda").bfloat16().float()
    side = case.side // 2 if case.kind == "halve" else case.side
    incoming = torch.randn(case.batch, side, side, case.channels, device="cuda").bfloat16()
    return [x, weight, *vectors.unbind(), incoming]


def ours(case: Case) -> Function:
    if case.kind == "norm":
        return lambda x, weight, bias, gamma, beta: depthwise3x3_norm(x, weight, bias, gamma, beta, 1e-5)
    options: dict[str, Any] = {
        "residual": {"residual": True},
        "silu": {"activation": "silu"},
        "halve": {"activation": "relu", "stride": 2},
    }[case.kind]
    return lambda x, weight, bias, *_: (depthwise3x3(x, weight, bias, **options),)


def formula(case: Case) -> Function:
    """torch's own operations."""
    stride = 2 if case.kind == "halve" else 1

    def function(x: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
        y = functional.conv2d(
            x.permute(0, 3, 1, 2), weight.to(x.dtype), bias.to(x.dtype), stride, padding=1, groups=case.channels
        ).permute(0, 2, 3, 1)
        if case.kind == "silu":
            return (functional.silu(y),)
        if case.kind == "halve":
            return (functional.relu(y),)
        y = x + y
        if case.kind == "residual":
            return (y,)
        return y, functional.layer_norm(y, (case.channels,), gamma.to(y.dtype), beta.to(y.dtype), 1e-5)

    return function


def complete(function: Function, case: Case) -> Function:
    """The forward pass without recording, or both passes: the result, then the gradients for x, weight and bias."""

    def forward(*args: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return function(*args[:-1])

    def both(*args: Tensor) -> tuple[Tensor, ...]:
        leaves = [v.detach().requires_grad_() for v in args[:3]]
        (y,) = function(*leaves, *args[3:-1])
        return y.detach(), *torch.autograd.grad(y, leaves, args[-1])

    return both if case.backward else forward


def error(found: tuple[Tensor, ...], truth: tuple[Tensor, ...]) -> float:
    return max(((f.double() - t).norm() / t.norm().clamp(min=1e-30)).item() for f, t in zip(found, truth, strict=True))


def compare(case: Case) -> dict[str, Any]:
    args = inputs(case)
    torch.compiler.reset()
    contenders = {
        "kernel": complete(ours(case), case),
        "cudnn": complete(formula(case), case),
        "compiled": complete(torch.compile(formula(case), dynamic=False), case),
    }
    truth = complete(formula(case), case)(*(v.double() for v in args))
    errors = {name: error(function(*args), truth) for name, function in contenders.items()}
    right = {name: record(functools.partial(contenders[name], *args)) for name, e in errors.items() if e < BOUND}
    times = in_turn(right)
    speeds = {f"{name}_GB/s": round(case.bytes_moved / t / 1e3) for name, t in times.items()}
    return case._asdict() | {
        **{f"{name}_us": round(times[name], 2) if name in times else "wrong" for name in contenders},
        **speeds,
        "errors": {name: float(f"{e:.1e}") for name, e in errors.items()},
    }


def candidates(case: Case) -> list[launch.DepthwiseTiles]:
    shapes = SHAPES
    if case.kind == "norm":  # a program holds all channels of a pixel, four or eight for each thread
        channels = 1 << (case.channels - 1).bit_length()
        choices = itertools.product((1, 2, 4, 8, 16, 32), (4, 8))
        shapes = [(w, channels, n) for w, n in choices if w * channels in (128 * n, 256 * n)]
    rows = (8, 16, 32) if case.backward else (4, 8) if case.batch > 1 else (1, 2, 4)
    return [
        launch.DepthwiseTiles(width, channels, r, warps)
        for (width, channels, warps), r in itertools.product(shapes, rows)
    ]


def sweep(case: Case, keep: int = 5) -> dict[str, Any]:
    """The fastest ways to cut the forward pass, or the backward pass alone, into programs."""
    args = inputs(case)
    x, weight, bias, gamma, beta, incoming = args
    activation = {"silu": "silu", "halve": "relu"}.get(case.kind, "none")
    options = (case.kind == "residual", activation, 2 if case.kind == "halve" else 1)

    def call(tiles: launch.DepthwiseTiles | None) -> Function:
        if case.kind == "norm":
            return lambda *_: launch.forward_norm(x, weight, bias, (gamma, beta, 1e-5), tiles)
        if case.backward:
            return lambda *_: launch.backward(incoming, x, weight, bias, *options, tiles)
        return lambda *_: (launch.forward(x, weight, bias, *options, tiles),)

    truth = complete(formula(case), case)(*(v.double() for v in args))
    truth = truth[1:] if case.backward else truth
    tried: dict[str, torch.cuda.CUDAGraph] = {}
    with ThreadPoolExecutor(16) as pool:  # compiles them all
        list(pool.map(lambda tiles: call(tiles)(*args), candidates(case)))
    for tiles in (None, *candidates(case)):
        assert error(call(tiles)(*args), truth) < BOUND, tiles
        tried["heuristic" if tiles is None else str(tuple(tiles))] = record(functools.partial(call(tiles), *args))
    times = in_turn(tried)
    best = sorted(times, key=times.__getitem__)[:keep]
    return case._asdict() | {"heuristic": round(times["heuristic"], 2), "best": {b: round(times[b], 2) for b in best}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--kind", nargs="+", default=["norm", "residual", "silu", "halve"])
    parser.add_argument("--sweep", action="store_true", help="time the kernels alone, cut in many ways")
    parser.add_argument("--forward", action="store_true", help="leave the backward passes out")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    results = []
    for case in cases(args.batch, args.kind, args.forward):
        results.append(sweep(case) if args.sweep else compare(case))
        print(json.dumps(results[-1]), flush=True)
    if args.out is not None:
        about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "bound": BOUND}
        write_json(args.out, about | {"results": results})


if __name__ == "__main__":
    main()
