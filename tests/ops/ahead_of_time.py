"""Compiles the kernels that a model needs for a GPU that is not there: `python -m tests.ops.ahead_of_time 86 train`.

A driver that only knows the GPU's name stands in for Triton's, and every launch is noted instead of made: first the
model runs once through its kernels, then each kernel that it launched is compiled for that GPU. Its tensors have shapes
and no numbers (fake ones of torch), so that a large model on large images takes seconds. Prints JSON: kernels with the
shared memory they take, and what did not compile.
"""

import argparse
import contextlib
import copy
import json
import sys
import time
import warnings

import torch
from torch._library.custom_ops import CustomOpDef
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

torch.version.cuda = torch.version.cuda or "none"  # else crispseg takes the kernels to be out of place here

_register_fake = CustomOpDef.register_fake
# what an operator does with tensors without numbers is what it always does: it launches its kernels
CustomOpDef.register_fake = lambda self, like: _register_fake(self, self._init_fn)

from triton.runtime import driver  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

import crispseg  # noqa: E402
from crispseg.losses import LossConfig, segmentation_loss  # noqa: E402
from crispseg.ops import compile_ahead, dispatch  # noqa: E402
from crispseg.ops.common import dependent_launch, hardware  # noqa: E402
from crispseg.ops.nc_ssd import launch  # noqa: E402

SHARED = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227}  # KB that a program can have
MULTIPROCESSORS = {80: 108, 86: 84, 89: 128, 90: 132, 100: 148}  # of the largest
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def pretend(capability):
    """To be on that GPU, as far as the choice of kernels and tiles asks."""
    driver.set_active(compile_ahead.OnlyATarget(capability))
    dependent_launch._can = lambda device: capability >= 90
    launch.INTERPRETED = True  # its tensors may be on a CPU
    dispatch.shared_memory = lambda device: 1024 * SHARED[capability]
    asked = hardware.multiprocessors
    for module in list(sys.modules.values()):  # those that have it already; later ones get it from its own module
        if getattr(module, "multiprocessors", None) is asked:
            module.multiprocessors = lambda device: MULTIPROCESSORS[capability]


def launched(work):
    """The kernels that `work` launches, each once."""
    found = {}

    def note(*, fn, compile, **others):
        found[(fn.module, fn.name, compile["specialization_data"])] = fn.jit_function
        return True

    with compile_ahead._cache_hook(note), dispatch.through_the_interpreter(), warnings.catch_warnings(action="ignore"):
        work()
    return found


def training(model, images, precision):
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        output = model(images.contiguous(memory_format=torch.channels_last))
    labels = torch.zeros(len(images), *images.shape[2:], dtype=torch.int64)
    segmentation_loss(output, labels, LossConfig())["total"].backward()


def rehearsed(work, name, precision=torch.bfloat16, batch=2, size=512, **options):
    """The kernels of a pass through the model."""
    model = crispseg.create_model(name, **options).to(memory_format=torch.channels_last)
    network = model.train() if work == "train" else model.eval().fused(precision, graphs=False)
    fake = FakeTensorMode()
    with FakeCopyMode(fake):
        network = copy.deepcopy(network)
    with fake:
        images = torch.rand(batch, 3, size, size)
        if work == "train":
            return launched(lambda: training(network, images, precision))
        return launched(lambda: network(images))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("capability", type=int)
    parser.add_argument("work", choices=["train", "predict"])
    parser.add_argument("--model", default="crisp_nano")
    parser.add_argument("--options", type=json.loads, default={}, help="of the model, as JSON")
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    parser.add_argument("--of", nargs="+", default=[""], help="kernels of these modules only")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--batch", type=int, default=2)
    args = parser.parse_args()
    pretend(args.capability)
    torch.manual_seed(0)
    precision = PRECISIONS[args.precision]
    kernels = rehearsed(args.work, args.model, precision, args.batch, args.size, **args.options)
    compiled, failed = {}, {}
    started = time.monotonic()
    chosen = [(key, function) for key, function in kernels.items() if any(part in key[0] for part in args.of)]
    for (module, name, specialization), function in chosen:
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
