"""The kernels of the stem, the output norms, the neck and the final resize of a CRISP-tiny at 512 px, in bf16.

python benchmarks/map_kernels.py --batch 1 16

Each is timed with several tiles, the one in use among them, and beside what torch does instead; launches are captured
into a CUDA graph. Errors are against float64, of the first and the last image. "default" is what the package chooses.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from gpu_time import microseconds  # beside this file
from torch import Tensor
from torch.nn import functional

from crispseg import ops
from crispseg.bench.check import relative_error
from crispseg.ops.maps import convolution, normalize, resizing
from crispseg.ops.maps import convolution_kernels as convolutions
from crispseg.ops.maps import normalize_kernels as norms
from crispseg.ops.maps import resizing_kernels as resizes
from crispseg.ops.maps.convolution_kernels import ConvolutionTiles, ImageTiles, MixTiles
from crispseg.ops.maps.normalize_kernels import AddTiles, NormTiles


@dataclasses.dataclass
class Case:
    name: str
    formula: Callable[..., Tensor]
    images: tuple[Tensor, ...]  # with a batch axis
    weights: tuple[Any, ...]
    candidates: dict[str, Callable[..., Tensor]]  # of images and weights


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def kernel(weight_shape: tuple[int, ...]) -> Tensor:
    fan = weight_shape[1] * weight_shape[2] * weight_shape[3]
    return (draw(*weight_shape) / fan**0.5).contiguous(memory_format=torch.channels_last)


def with_tiles(function: Callable[..., Tensor], *tried: Any) -> dict[str, Callable[..., Tensor]]:
    return {str(tuple(t)): lambda *args, t=t: function(*args, tiles=t) for t in tried}


def stem_cases(batch: int) -> list[Case]:
    image = draw(batch, 3, 512, 512)
    x, y = draw(2, batch, 256, 256, 32)
    first, inner, outer = kernel((32, 3, 3, 3)), kernel((32, 32, 3, 3)), kernel((256, 32, 3, 3))
    mix = (draw(64, 256) / 16).t()
    tiles = [
        *(ConvolutionTiles(r, 128, 2, 4, 1, 2) for r in (2, 4)),
        ConvolutionTiles(1, 128, 2, 4, 1, 3),
        ConvolutionTiles(2, 128, 1, 4, 1, 2),
        ConvolutionTiles(4, 128, 1, 8, 1, 1),
        ConvolutionTiles(2, 256, 2, 8, 1, 1),
        ConvolutionTiles(1, 128, 2, 4, 2, 1),
    ]

    def plain(x: Tensor, weight: Tensor, bias: Tensor, tiles: Any = None) -> Tensor:
        return convolutions.convolve(x, weight, bias, None, True, tiles)

    def added(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, tiles: Any = None) -> Tensor:
        return convolutions.convolve(x, weight, bias, residual, False, tiles)

    return [
        Case(
            "image 3 -> 32, stride 2",
            convolution.convolve_image,
            (image,),
            (first, draw(32)),
            with_tiles(
                convolutions.convolve_image, *map(ImageTiles._make, [(64, 2), (64, 4), (128, 4), (128, 8), (256, 8)])
            ),
        ),
        Case(
            "32 -> 32",
            lambda x, w, b: convolution.convolve(x, w, b, relu=True),
            (x,),
            (inner, draw(32)),
            with_tiles(plain, *tiles),
        ),
        Case(
            "32 -> 32, residual",
            lambda x, r, w, b: convolution.convolve(x, w, b, residual=r),
            (x, y),
            (inner, draw(32)),
            with_tiles(added, *tiles),
        ),
        Case(
            "32 -> 256, stride 2, -> 64",
            convolution.halve_and_mix,
            (x,),
            (outer, draw(256), mix, draw(64)),
            with_tiles(
                convolutions.halve_and_mix,
                *map(
                    MixTiles._make,
                    [
                        (64, 64, 4, 1),
                        (64, 64, 4, 2),
                        (64, 128, 4, 1),
                        (128, 64, 8, 1),
                        (128, 64, 8, 2),
                        (128, 64, 8, 3),
                        (128, 128, 8, 1),
                        (256, 64, 8, 1),
                    ],
                ),
            ),
        ),
    ]


def norm_cases(batch: int) -> list[Case]:
    cases = []
    for side, channels in ((128, 64), (64, 128), (32, 256), (16, 512)):
        x, norm = draw(batch, side, side, channels), tuple(draw(2, channels))
        cases.append(
            Case(
                f"norm {side}x{side}x{channels}",
                normalize.layer_norm,
                (x,),
                (*norm, 1e-5),
                with_tiles(
                    norms.layer_norm, *map(NormTiles._make, [(1024, 4), (2048, 4), (4096, 4), (8192, 4), (4096, 8)])
                ),
            )
        )
    for side, channels in ((128, 64), (64, 128), (32, 256)):
        x, coarser = draw(batch, side, side, channels), draw(batch, side // 2, side // 2, 256)
        weights = (*draw(2, channels), 1e-5, (draw(256, channels) / channels**0.5).t(), draw(256))

        def step(x: Tensor, coarser: Tensor, *weights: Any, tiles: Any = None) -> Tensor:
            return norms.norm_relu_add(x, *weights, coarser, tiles=tiles)

        tried = [(32, 64, 4), (64, 64, 4), (64, 64, 8), (32, 128, 8), (64, 128, 8), (32, 64, 8), (128, 64, 8)]
        cases.append(
            Case(
                f"norm + product + resize {side}x{side}x{channels}",
                lambda x, coarser, *weights: normalize.norm_relu_add(x, *weights, coarser),
                (x, coarser),
                weights,
                with_tiles(step, *map(AddTiles._make, tried)),
            )
        )
    return cases


def resize_cases(batch: int) -> list[Case]:
    def with_columns(columns: int, warps: int) -> Callable[..., Tensor]:
        def run(scores: Tensor, *rest: Any) -> Tensor:
            return resizes.upsample(scores, *rest, tiles=(columns, warps))

        return run

    tried = {str(t): with_columns(*t) for t in ((512, 4), (512, 2), (256, 2), (256, 1), (512, 8))}
    return [
        Case(
            f"scores {side} -> 512{', quarters' if quarters else ''}",
            resizing.upsample,
            (draw(batch, 6, side * side, dtype=torch.float32),),
            ((side, side), (512, 512), quarters),
            tried,
        )
        for side, quarters in ((128, False), (256, True))
    ]


def neck_case(batch: int) -> Case:
    """cuDNN's product with its bias and ReLU, or these in a pass of their own."""
    x, weight = draw(batch, 128, 128, 256), kernel((256, 256, 3, 3))

    def in_two(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = functional.conv2d(x.permute(0, 3, 1, 2), weight, padding=1)
        return y.permute(0, 2, 3, 1).add_(bias).relu_()

    return Case(
        "neck 256 -> 256",
        lambda x, w, b: convolution.convolve(x, w, b, relu=True),
        (x,),
        (weight, draw(256)),
        {"a pass of their own": in_two},
    )


def measure(case: Case, batch: int) -> None:
    few = tuple(x[[0, -1]].double() for x in case.images)
    weights = tuple(w.double() if isinstance(w, Tensor) else w for w in case.weights)
    truth = case.formula(*few, *weights)
    runs = {"default": case.formula, **case.candidates}

    def compile_one(run: Callable[..., Tensor]) -> None:
        with torch.inference_mode():
            run(*case.images, *case.weights)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(_quietly(compile_one), runs.values()))
    print(f"\n{case.name}, batch {batch}", flush=True)
    with ops.only("torch"):
        show("torch", lambda *args: case.formula(*args), case, truth)
    for name, run in runs.items():
        show(name, run, case, truth)


def _quietly(function: Callable[..., None]) -> Callable[..., None]:
    def run(*args: Any) -> None:
        try:
            function(*args)
        except Exception:
            return  # said when it is timed

    return run


def show(name: str, run: Callable[..., Tensor], case: Case, truth: Tensor) -> None:
    try:
        with torch.inference_mode():
            found = run(*case.images, *case.weights)[[0, -1]]
            error = relative_error((found,), (truth,))
            took = microseconds(lambda: run(*case.images, *case.weights))
        print(f"  {name:24} {took:8.2f} us   error {error:.1e}", flush=True)
    except Exception as problem:  # too much shared memory for this GPU, say
        print(f"  {name:24} {type(problem).__name__}: {str(problem)[:80]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--only", nargs="+", help="cases whose names contain one of these")
    args = parser.parse_args()
    torch.manual_seed(0)
    for batch in args.batch:
        for case in (*stem_cases(batch), *norm_cases(batch), *resize_cases(batch), neck_case(batch)):
            if not args.only or any(word in case.name for word in args.only):
                measure(case, batch)


if __name__ == "__main__":
    main()
