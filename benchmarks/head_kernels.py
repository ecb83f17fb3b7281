"""The head's kernels against torch.compile's code for the same formulas, in CUDA graphs, checked before they are timed.

python benchmarks/head_kernels.py --out head_kernels.json

Twenty calls are recorded into a graph, so that launching costs nothing. With --sweep the kernels are timed with other
tiles instead, to choose their defaults.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_time import in_turn, microseconds, record  # beside this file
from torch import Tensor

from crispseg import ops
from crispseg.bench.check import relative_error
from crispseg.files import write_json
from crispseg.ops.infer import matching, pixel_attention, token_attention
from crispseg.ops.maps import resizing

BOUND = 1e-2
CLASSES, HEADS, DIM, PROTOTYPES, SIDE = 6, 8, 256, 3, 128  # of a CRISP-tiny at 512 px
INNER, HIDDEN = 16, 2048  # a head's width where tokens and pixels meet, and the width of the tokens' perceptron


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
    tokens = draw(batch, CLASSES, DIM)
    finer, coarser = draw(batch, SIDE, SIDE, DIM), draw(batch, SIDE // 2, SIDE // 2, DIM)
    size = pixels.nbytes
    hyper = (draw(CLASSES, DIM, DIM) / 16, draw(CLASSES, DIM))
    read, join = draw(batch, CLASSES, HEADS * INNER), (draw(HEADS * INNER, DIM) / 16, *draw(3, DIM))
    own = (draw(3 * DIM, DIM) / 16, draw(3 * DIM))
    perceptron = (*draw(2, HIDDEN, DIM) / 16, draw(HIDDEN), draw(DIM))
    vectors = (*draw(2, 2 * HEADS, INNER, DIM) / 16, *draw(2, 2 * HEADS, INNER))
    return [
        Case("read_pixels", pixel_attention.read_pixels, (keys, pixels, draw(HEADS, INNER, DIM) / 16), bytes=size),
        Case(
            "pixels_attend_tokens",
            pixel_attention.pixels_attend_tokens,
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
        Case("attend_own", _attend_own, (tokens, *own)),
        Case("tokens of a layer", _layer, (tokens, read, *join, *perceptron, *vectors, *own)),
        Case("join_grouped", _join_grouped, (tokens, read, *join, *hyper)),
        Case("grouped_product", matching.grouped_product, (tokens, *hyper), (True,)),
        Case("max_and_mean", matching.max_and_mean, (draw(batch, 256, DIM) + 0.5,)),
    ]


def _attend_own(tokens: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return token_attention.attend_own(tokens, token_attention.OwnAttention(weight, bias, HEADS))


def _join(weight: Tensor, bias: Tensor, gain: Tensor, shift: Tensor) -> token_attention.Join:
    return token_attention.Join(weight, bias, token_attention.Norm(gain, shift, 1e-5))


def _layer(tokens: Tensor, read: Tensor, *weights: Tensor) -> Tensor:
    """What follows a reading of the pixels, up to the tokens' vectors for the next one."""
    join = _join(*weights[:4])
    first, second, first_bias, second_bias = weights[4:8]
    perceptron = token_attention.Perceptron(first, first_bias, second, second_bias)
    first, second, bias, score = weights[8:12]
    vectors = token_attention.Vectors(first, bias, second, score)
    own = token_attention.OwnAttention(*weights[12:], HEADS)
    parts = token_attention.join_perceptron(tokens, read, join, perceptron)
    tokens, made, _, attended = token_attention.settle(parts, join.norm, vectors, own)
    narrow = attended[..., : read.shape[-1]].contiguous()
    return made + token_attention.join_vectors(tokens, narrow, join, vectors)[1]


def _join_grouped(tokens: Tensor, read: Tensor, *weights: Tensor) -> Tensor:
    return token_attention.join_grouped(tokens, read, _join(*weights[:4]), *weights[4:], True)


def formula(case: Case) -> Callable[..., Tensor]:
    """The function's plain torch, which is what it runs where kernels do not apply."""

    def run(*tensors: Tensor) -> Tensor:
        return case.function(*tensors, *case.rest)

    return run


def measure(case: Case, batch: int) -> dict[str, Any]:
    torch.compiler.reset()  # each case is compiled for itself
    run = formula(case)
    truth = run(*(x.double() for x in case.tensors))
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    errors: dict[str, float] = {}
    for name in ("kernel", "compiled", "torch"):
        with contextlib.nullcontext() if name == "kernel" else ops.only("torch"):
            function = torch.compile(formula(case), dynamic=False) if name == "compiled" else run
            errors[name] = relative_error((function(*case.tensors),), (truth,))
            if errors[name] <= BOUND:
                graphs[name] = record(functools.partial(function, *case.tensors))
    times = in_turn(graphs)
    row: dict[str, Any] = {"operation": case.name, "batch": batch}
    for name in errors:
        row[f"{name} us"] = round(times[name], 2) if name in times else "wrong"
        row[f"{name} error"] = f"{errors[name]:.1e}"
    if case.bytes and "kernel" in times:
        row["kernel GB/s"] = round(case.bytes / times["kernel"] / 1e3)
    return row


def sweep(batch: int, only: list[str] | None) -> list[dict[str, Any]]:
    """The kernels with each of a few tiles; a wrong or failing one says so."""
    from crispseg.ops.infer import matching_kernels, pixel_attention_kernels, token_attention_kernels
    from crispseg.ops.infer.pixel_attention_kernels import AttentionTiles
    from crispseg.ops.infer.token_attention_kernels import Pieces

    each = 1 << 30  # a program for each block of pixels
    tried: dict[str, tuple[Any, str, list[Any]]] = {
        "read_pixels": (
            pixel_attention_kernels,
            "READ",
            [(64, 4, 2), (64, 4, 2, 132), (64, 4, 3, 132), (32, 4, 3), (32, 4, 4), (64, 4, 1), (128, 8, 2, 132)],
        ),
        "pixels_attend_tokens": (
            pixel_attention_kernels,
            "WRITE",
            [(64, 4, 2), (64, 4, 1), (64, 4, 1, each), (64, 4, 3, 132), (128, 8, 2, 132), (128, 8, 1, 132), (32, 4, 2)],
        ),
        "best_cosines": (
            matching_kernels,
            "MATCH",
            [(64, 4, 3), (64, 4, 2, 528), (64, 4, 1, each), (64, 4, 3, 528), (32, 4, 4, 396), (128, 4, 2)],
        ),
        "tokens of a layer": (
            token_attention_kernels,
            "PIECES",
            [Pieces(h, warps=w) for w in (4, 8) for h in (64, 128)],
        ),
        "attend_own": (token_attention_kernels, "PIECES", [Pieces(warps=w) for w in (4, 8)]),
        "join_grouped": (token_attention_kernels, "PIECES", [Pieces(columns=c) for c in (16, 32, 64)]),
        "grouped_product": (matching_kernels, "COLUMNS", [16, 32, 64]),
    }
    rows = []
    for case in cases(batch):
        if case.name not in tried or (only and not any(word in case.name for word in only)):
            continue
        module, name, values = tried[case.name]
        default = getattr(module, name)
        for value in values:
            tiles = AttentionTiles(*value) if type(value) is tuple else value
            setattr(module, name, tiles)
            try:
                found: Any = round(_kernel_time(case), 2)
            except Exception as problem:  # too much shared memory for this GPU
                found = type(problem).__name__
            rows.append({"operation": case.name, "batch": batch, name: tiles, "us": found})
            print(*rows[-1].values(), "(default)" if tiles == default else "", flush=True)
        setattr(module, name, default)
    return rows


def _kernel_time(case: Case) -> float:
    run = formula(case)
    if relative_error((run(*case.tensors),), (run(*(x.double() for x in case.tensors)),)) > BOUND:
        raise ValueError("wrong")
    return microseconds(functools.partial(run, *case.tensors))


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
                rows += sweep(batch, args.only)
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
