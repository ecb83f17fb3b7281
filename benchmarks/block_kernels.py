"""The kernels of half a block against the calls they replace, and how to cut their work, on a CUDA device.

  python benchmarks/block_kernels.py --batch 1 16 --kind project mlp --out block_kernels.json

The maps are those of crisp_tiny at 512 px, in bf16. "project" is the first half up to in_proj, "mlp" the second half
whole. "torch" is one kernel for the convolution and LayerNorm and one of cuBLAS for each product. Twenty calls are
recorded into a CUDA graph, so that launching costs nothing; a time is the median of ten replays. Nothing is timed
before it agrees with float64.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from gpu_time import Call, microseconds  # beside this file
from torch import Tensor
from torch.nn import functional

from crispseg.files import write_json
from crispseg.fused.layers import linear_gelu
from crispseg.ops.infer import block_launch as launch
from crispseg.ops.infer.block import MLP, Start
from crispseg.ops.maps.depthwise import depthwise3x3_norm, packed

BOUND = 1e-2
STAGES = {64: (128, 392), 128: (64, 648)}  # side, and columns of in_proj
T = launch.BlockTiles
PROJECT = {
    64: [
        T(8, 16, 64, 8, 2, 128),
        T(8, 16, 128, 8, 2, 128),
        T(8, 16, 64, 8, 3, 128),
        T(8, 8, 64, 4, 2, 128),
        T(8, 8, 128, 4, 2, 128),
        T(4, 16, 64, 4, 2, 128),
        T(4, 8, 64, 4),
    ],
}
WHOLE = {
    64: [
        T(8, 16, 64, 8, 2, 128),
        T(8, 16, 64, 8, 3, 128),
        T(8, 16, 32, 8, 2, 128),
        T(8, 8, 64, 4, 2, 128),
        T(8, 8, 64, 4, 3, 128),
        T(8, 8, 32, 4, 2, 128),
        T(8, 8, 128, 4, 2, 168),
    ],
    128: [
        T(8, 16, 64, 8),
        T(8, 16, 64, 16),
        T(8, 16, 32, 8, 3),
        T(8, 8, 64, 8, 2, 128),
        T(8, 8, 64, 4),
        T(4, 8, 64, 8),
        T(4, 4, 64, 8),
    ],
}
CANDIDATES = {"project": PROJECT, "mlp": WHOLE}


def draw(*shape: int, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(*shape, device="cuda")).bfloat16()


def inputs(batch: int, channels: int) -> tuple[Tensor, Start, Tensor, MLP]:
    side, columns = STAGES[channels]
    start = Start(packed(draw(channels, 1, 3, 3, scale=1 / 3)), *draw(3, channels), 1e-5)
    hidden = 4 * channels
    fc1 = draw(hidden, channels, scale=channels**-0.5).t()
    fc2 = draw(channels, hidden + 8, scale=hidden**-0.5).t()[:hidden]
    mlp = MLP(fc1, draw(hidden), fc2, draw(channels))
    return draw(batch, side, side, channels), start, draw(columns, channels, scale=channels**-0.5).t(), mlp


def truth(kind: str, x: Tensor, start: Start, matrix: Tensor, mlp: MLP) -> tuple[Tensor, ...]:
    """In float64."""
    x, matrix = x.double(), matrix.double()
    weight, bias, gamma, beta = (v.double() for v in start[:4])
    fc1, fc1_bias, fc2, fc2_bias = (v.double() for v in mlp)
    y = functional.conv2d(x.permute(0, 3, 1, 2), weight, bias, padding=1, groups=x.shape[3]).permute(0, 2, 3, 1) + x
    normed = functional.layer_norm(y, (x.shape[3],), gamma, beta, start.eps)
    if kind == "project":
        return y, normed @ matrix
    return (y + functional.gelu(normed @ fc1 + fc1_bias) @ fc2 + fc2_bias,)


def torchs(kind: str, x: Tensor, start: Start, matrix: Tensor, mlp: MLP) -> Callable[[], tuple[Tensor, ...]]:
    def project() -> tuple[Tensor, ...]:
        y, normed = depthwise3x3_norm(x, *start)
        return y, normed @ matrix

    def whole() -> tuple[Tensor, ...]:
        """Without the second bias, which the network hides in a constant unit where it goes this way."""
        y, normed = depthwise3x3_norm(x, *start)
        units = linear_gelu(normed.view(-1, x.shape[3]), mlp.fc1, mlp.fc1_bias)
        y.view(-1, x.shape[3]).addmm_(units, mlp.fc2)
        return (y,)

    return project if kind == "project" else whole


def ours(
    kind: str, x: Tensor, start: Start, matrix: Tensor, mlp: MLP, tiles: launch.BlockTiles | None
) -> Callable[[], tuple[Tensor, ...]]:
    if kind == "project":
        return lambda: launch.project(x, start, matrix, tiles)
    return lambda: (launch.mlp(x, start, mlp, tiles),)


def error(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    return max(((f.double() - e).norm() / e.norm()).item() for f, e in zip(found, expected, strict=True))


def compile_all(kinds: list[str]) -> None:
    """Each candidate once, many at a time."""
    jobs = [
        ours(kind, *inputs(1, channels), tiles)
        for kind in kinds
        for channels, candidates in CANDIDATES[kind].items()
        for tiles in candidates
    ]

    def attempt(job: Call) -> None:
        try:
            job()
        except Exception as problem:  # the sweep names the candidate when it comes to it
            print(type(problem).__name__, str(problem)[:200], flush=True)

    with torch.no_grad(), ThreadPoolExecutor(16) as pool:
        list(pool.map(attempt, jobs))
    torch.cuda.synchronize()


@torch.no_grad()
def sweep(kind: str, batch: int, channels: int) -> dict[str, Any]:
    args = inputs(batch, channels)
    expected = truth(kind, *args)
    result: dict[str, Any] = {"kind": kind, "batch": batch, "channels": channels}
    result["torch"] = round(microseconds(torchs(kind, *args)), 2)
    times: dict[str, Any] = {}
    for tiles in (None, *CANDIDATES[kind][channels]):
        name = "default" if tiles is None else ",".join(str(v) for v in tiles)
        try:
            call = ours(kind, *args, tiles)
            wrong = error(call(), expected)
            times[name] = round(microseconds(call), 2) if wrong < BOUND else f"wrong: {wrong:.1e}"
            result["error"] = max(result.get("error", 0.0), float(f"{wrong:.1e}"))
        except Exception as problem:
            times[name] = f"{type(problem).__name__}: {str(problem)[:80]}"
    return result | {"us": dict(sorted(times.items(), key=lambda item: (isinstance(item[1], str), item[1])))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--kind", nargs="+", choices=list(CANDIDATES), default=list(CANDIDATES))
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    args = parser.parse_args()
    torch.manual_seed(0)
    compile_all(args.kind)
    results = []
    for kind in args.kind:
        for channels in CANDIDATES[kind]:
            for batch in args.batch:
                results.append(sweep(kind, batch, channels))
                print(json.dumps(results[-1]), flush=True)
    if args.out is not None:
        write_json(args.out, {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "results": results})


if __name__ == "__main__":
    main()
