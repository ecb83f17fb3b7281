"""Times the operator's Triton kernels against torch and torch.compile, with the sizes it has in a CRISP-tiny.

  python benchmarks/operator_kernels.py --out benchmarks/results/operator_kernels.json
  python benchmarks/operator_kernels.py --stages 1 --batches 16 --sweep

`ncssd` forward, and forward with backward; `gated_mixer` (softplus to gate) forward. bfloat16 tokens. Twenty calls are
recorded into a CUDA graph, so that launching costs nothing; contenders take turns. No time without a passing check
against the float64 reference. GB/s counts each tensor once per pass. --sweep times every kernel with a few other
tilings and prints the best; put a better one into TILINGS in src/crispseg/ops/nc_ssd: those of gradients are in
backward.py, the others in launch.py.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gpu_time import in_turn, record  # beside this file
from torch import Tensor

from crispseg.bench.check import OPERATOR_BOUNDS, relative_error
from crispseg.bench.operator import DIRECTIONS, Shape, error, function, least_bytes, random_inputs, shape_at, truth
from crispseg.bench.settings import choose
from crispseg.files import write_json
from crispseg.ops import Gates, Rule
from crispseg.ops.infer.gated_mixer import gated_mixer

Run = Callable[[], Any]
PRECISION = "bf16"
DEVICE = "cuda"
HEADINGS = ("stage", "batch", "tokens", "way", "us", "GB/s", "error")
# kernel: the work it is part of, and tilings (tokens, warps, stages, programs per multiprocessor)
SWEPT = {
    "accumulate": (
        "forward",
        [(32, 4, 3, 4), (64, 8, 3, 2), (64, 4, 2, 2), (32, 4, 4, 6), (64, 8, 3, 4), (16, 4, 4, 8)],
    ),
    "query_and_reduce": ("forward", [(64, 4, 2, 1), (64, 4, 2, 2), (128, 4, 2, 1), (32, 4, 2, 2)]),
    "read_out": (
        "forward",
        [(32, 4, 3, 4), (64, 8, 3, 2), (64, 4, 2, 2), (32, 4, 2, 8), (128, 8, 2, 2), (64, 8, 2, 8)],
    ),
    "state_gradients": (
        "forward+backward",
        [(32, 4, 2, 3), (32, 8, 2, 2), (64, 8, 2, 2), (64, 8, 3, 2), (16, 4, 3, 4), (32, 4, 3, 4)],
    ),
    "query_gradients": (
        "forward+backward",
        [(64, 4, 2, 1), (64, 8, 3, 1), (32, 4, 3, 1), (32, 4, 4, 1), (128, 8, 2, 1)],
    ),
    "token_gradients": (
        "forward+backward",
        [(64, 8, 2, 1), (64, 8, 1, 1), (32, 8, 2, 1), (32, 4, 2, 1), (16, 4, 2, 1)],
    ),
    "read_out_gated": (
        "gated",
        [(16, 4, 2, 1), (16, 8, 2, 1), (16, 16, 2, 1), (32, 8, 2, 1), (32, 16, 2, 1), (64, 8, 2, 1)],
    ),
}


class Contest(NamedTuple):
    """The same work done in several ways, on the same inputs."""

    name: str
    bytes: int
    contenders: dict[str, Run]
    check: Callable[[Any], float]  # the relative error of a contender's result


def operator_contest(shape: Shape, direction: str, names: tuple[str, ...]) -> Contest:
    torch.compiler.reset()  # each size is compiled for itself
    inputs = random_inputs(shape, PRECISION, direction, choose(DEVICE), seed=0)
    true = truth(shape, direction, inputs)
    made = {
        "torch": lambda: function("torch", shape, direction, False),
        "compiled": lambda: function("torch", shape, direction, True),
        "triton": lambda: function("triton", shape, direction, False),
    }
    contenders = {name: bind(made[name](), *inputs) for name in names}
    size = least_bytes(shape, PRECISION, direction)
    return Contest(direction, size, contenders, lambda found: error(PRECISION, found, true))


def mixer_contest(shape: Shape, names: tuple[str, ...]) -> Contest:
    batch, tokens, heads, width, state = shape
    inner = heads * width
    whole = torch.randn(batch, tokens, 2 * inner + 2 * state + 16, device=DEVICE)  # dt's columns padded to 16
    parameters = [torch.randn(n, device=DEVICE) for n in (heads, heads, heads, inner, inner)]
    gates = Gates(*(0.3 * torch.randn(n, device=DEVICE) for n in (heads, heads, width, width)))

    def mix(whole: Tensor, backend: str, wide: bool = False) -> Tensor:
        z, dt = whole[..., :inner], whole[..., inner : inner + heads]
        xbc = whole[..., inner + 16 :]
        values = [x.double() if wide else x for x in (*parameters, *gates)]
        return gated_mixer(xbc, dt, z, *values[:3], Gates(*values[5:]), Rule(), *values[3:5], backend=backend)

    half = whole.bfloat16()
    true = mix(half.double(), "reference", wide=True)
    torch.compiler.reset()
    compiled = torch.compile(mix, dynamic=False)
    made = {
        "torch": bind(mix, half, "torch"),
        "compiled": bind(compiled, half, "torch"),
        "triton": bind(mix, half, "triton"),
    }
    moved = half.element_size() * batch * tokens * (3 * inner + 2 * state + heads)  # xbc, dt and z in, the result out
    contenders = {name: made[name] for name in names}
    return Contest("gated", moved, contenders, lambda found: relative_error((found,), (true,)))


def bind(run: Callable[..., Any], *inputs: Any) -> Run:
    def bound() -> Any:
        with torch.no_grad():
            return run(*inputs)

    return bound


def recorded(contest: Contest) -> tuple[dict[str, torch.cuda.CUDAGraph], dict[str, float]]:
    """The contenders whose results are right, ready to be timed, and the errors of all."""
    graphs, errors = {}, {}
    for name, run in contest.contenders.items():
        errors[name] = contest.check(run())
        if errors[name] < OPERATOR_BOUNDS[PRECISION]:
            graphs[name] = record(run)
        else:
            print(f"  WRONG: {name}, {contest.name}: relative error {errors[name]:.1e}; not timed")
    return graphs, errors


def contests(shape: Shape, names: tuple[str, ...]) -> Iterator[Contest]:
    for direction in DIRECTIONS:
        yield operator_contest(shape, direction, names)
    yield mixer_contest(shape, names)


def compare(stage: int, size: int, batch: int) -> Iterator[dict[str, Any]]:
    shape = shape_at(stage, size, batch)
    for contest in contests(shape, ("torch", "compiled", "triton")):
        graphs, errors = recorded(contest)
        for name, time in in_turn(graphs).items():
            row = {
                "work": contest.name,
                "stage": stage,
                "batch": batch,
                "tokens": shape.tokens,
                "way": name,
                "us": round(time, 1),
                "gb_per_s": round(contest.bytes / time / 1e3),
                "error": f"{errors[name]:.1e}",
            }
            print("  " + "".join(f"{value!s:<18}" if key == "work" else f"{value!s:>10}" for key, value in row.items()))
            yield row
        del graphs
        torch.cuda.empty_cache()


def sweep(stage: int, size: int, batch: int) -> Iterator[dict[str, Any]]:
    from crispseg.ops.nc_ssd.launch import FORCED, Tiling

    for contest in contests(shape_at(stage, size, batch), ("triton",)):
        (run,) = contest.contenders.values()
        for kernel in (kernel for kernel, (work, _) in SWEPT.items() if work == contest.name):
            graphs = {"chosen": record(run)}
            for values in SWEPT[kernel][1]:
                FORCED[kernel] = Tiling(*values)
                try:
                    if contest.check(run()) < OPERATOR_BOUNDS[PRECISION]:
                        graphs[str(values)] = record(run)
                except Exception as problem:  # a tiling may need more than a multiprocessor has
                    print(f"  {kernel} {values}: {type(problem).__name__}")
                finally:
                    del FORCED[kernel]
            times = in_turn(graphs)
            best = min(times, key=times.__getitem__)
            print(f"  {kernel:<18} best {best} {times[best]:.1f} us, chosen {times['chosen']:.1f} us")
            yield {"stage": stage, "batch": batch, "kernel": kernel, "us": {k: round(v, 1) for k, v in times.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--size", type=int, default=512, help="pixels along a side of the image")
    parser.add_argument("--sweep", action="store_true", help="try other tilings of each kernel")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")  # what training does: the fastest way for torch, too
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    if not args.sweep:
        print(f"  {'work':<18}" + "".join(f"{x:>10}" for x in HEADINGS))
    measure = sweep if args.sweep else compare
    rows = []
    for stage, batch in itertools.product(args.stages, args.batches):
        print(f"stage {stage}, batch {batch}")
        rows += list(measure(stage, args.size, batch))
    if args.out is not None:
        environment = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "size": args.size}
        write_json(args.out, {**environment, "rows": rows})


if __name__ == "__main__":
    main()
