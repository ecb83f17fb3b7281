"""Lists the launches of a pass, for a GPU that is not there: `python -m tests.ops.launches crisp_nano train`.

A line for each, in order: kernel, grid, what it is called with; of tensors type, sizes and strides. Code around kernels
that was only rearranged gives the lines that it gave before: run this in both trees, and compare.
"""

from __future__ import annotations

import argparse
import inspect
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from tests.ops.ahead_of_time import PRECISIONS, SHARED, pretend, rehearsed


def shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{tuple(value.shape)}{value.stride()}"
    return repr(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("work", choices=["train", "predict"])
    parser.add_argument("--capability", type=int, choices=SHARED, default=90)
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--size", type=int, default=512)
    args = parser.parse_args()
    launch = JITFunction.run

    def run(self: Any, *given: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        by_name = dict(zip(inspect.signature(self.fn).parameters, given, strict=False)) | named
        words = " ".join(f"{name}={shown(value)}" for name, value in sorted(by_name.items()))
        print(self.fn.__name__, tuple(grid), words)
        return launch(self, *given, grid=grid, warmup=warmup, **named)

    JITFunction.run = run
    pretend(args.capability)
    rehearsed(args.work, args.model, PRECISIONS[args.precision], args.batch, args.size)


if __name__ == "__main__":
    main()
