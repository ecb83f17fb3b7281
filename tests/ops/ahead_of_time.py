"""Compiles the kernels that a model needs for a GPU that is not there: `python -m tests.ops.ahead_of_time 86 train`.

A driver that only knows the GPU's name stands in for Triton's, and every launch is noted instead of made: first the
model runs once, on a CPU, through its kernels, then each kernel that it launched is compiled for that GPU. Prints JSON:
kernels with the shared memory they take, and what did not compile.
"""

import argparse
import contextlib
import json
import sys
import time
import warnings

import torch

torch.version.cuda = torch.version.cuda or "none"  # else crispseg takes the kernels to be out of place here

from triton.runtime import driver  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

import crispseg  # noqa: E402
from crispseg.losses import LossConfig, segmentation_loss  # noqa: E402
from crispseg.ops import compile_ahead, dispatch  # noqa: E402
from crispseg.ops.common import dependent_launch  # noqa: E402
from crispseg.ops.nc_ssd import launch  # noqa: E402

SHARED = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227}  # KB that a program can have


def launched(work):
    """The kernels that `work` launches, each once."""
    found = {}

    def note(*, fn, compile, **others):
        found[(fn.module, fn.name, compile["specialization_data"])] = fn.jit_function
        return True

    with compile_ahead._cache_hook(note), dispatch.through_the_interpreter(), warnings.catch_warnings(action="ignore"):
        work()
    return found


def training(model, images):
    output = model(images)
    labels = torch.zeros(len(images), *images.shape[2:], dtype=torch.int64)
    segmentation_loss(output, labels, LossConfig())["total"].backward()


def predicting(model, images):
    model.eval().fused(torch.bfloat16, graphs=False)(images)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("capability", type=int)
    parser.add_argument("work", choices=["train", "predict"])
    parser.add_argument("--model", default="crisp_nano")
    parser.add_argument("--options", type=json.loads, default={}, help="of the model, as JSON")
    parser.add_argument("--most", type=int, help="so many kernels only")
    parser.add_argument("--of", default="", help="kernels of this module only")
    parser.add_argument("--size", type=int, default=64)
    args = parser.parse_args()
    driver.set_active(compile_ahead.OnlyATarget(args.capability))
    dependent_launch._can = lambda device: args.capability >= 90
    launch.INTERPRETED = True  # its tensors may be on a CPU
    dispatch.shared_memory = lambda device: 1024 * SHARED[args.capability]
    torch.manual_seed(0)
    model = crispseg.create_model(args.model, **args.options)
    images = torch.rand(1, 3, args.size, args.size)
    if args.work == "train":
        kernels = launched(lambda: training(model.train().bfloat16(), images.bfloat16()))
    else:
        kernels = launched(lambda: predicting(model, images))
    compiled, failed = {}, {}
    started = time.monotonic()
    chosen = [(key, function) for key, function in kernels.items() if args.of in key[0]]
    for (module, name, specialization), function in chosen[: args.most]:
        assert isinstance(function, JITFunction)
        label = f"{module.removeprefix('crispseg.ops.')}.{name}"
        try:
            made = function.preload(specialization)
        except Exception as error:
            failed[label] = f"{type(error).__name__}: {error}"[:300]
        else:
            compiled[label] = max(made.metadata.shared, compiled.get(label, 0))
    seconds = round(time.monotonic() - started, 1)
    json.dump({"launched": len(kernels), "compiled": compiled, "failed": failed, "seconds": seconds}, sys.stdout)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
