"""Compiles the kernels that the GPU tests of the registered models need: `python -m tests.models.precompile`.

A test alone would compile its own on its one core, and at the same time as its neighbours the same ones. Here a few
processes rehearse every model in every precision, and what they found is compiled once, on all cores.
"""

import argparse
import functools
import json
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import torch

import crispseg
from crispseg.models.registry import entries, missing_requirement
from crispseg.ops.compile_ahead import Kernel, compile_side_by_side, rehearse, start_compiler
from crispseg.train.config import config_from
from crispseg.train.distributed import Processes
from crispseg.train.step import Stepper, pixel_shares
from tests.models.registered import PRECISIONS
from tests.models.test_registered_gpu import SIZES, make


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=12, help="that rehearse (%(default)s)")
    parser.add_argument("--rehearse", type=float, default=90, help="seconds; what was found by then is compiled")
    parser.add_argument("--share", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.share:
        index, count = map(int, args.share.split("/"))
        for name in [name for name in crispseg.list_models() if not missing_requirement(entries()[name])][index::count]:
            for precision in PRECISIONS:
                print(*(json.dumps(kernel) for kernel in kernels_of(name, precision)), sep="\n", flush=True)
        return
    shares = [
        subprocess.Popen(
            [sys.executable, "-m", __spec__.name, "--share", f"{i}/{args.processes}"], stdout=subprocess.PIPE
        )
        for i in range(args.processes)
    ]
    end = threading.Timer(args.rehearse, lambda: [share.kill() for share in shares])
    end.start()
    with ThreadPoolExecutor(len(shares)) as pool:  # a full pipe would hold up who writes
        lines = [line for said, _ in pool.map(subprocess.Popen.communicate, shares) for line in whole_lines(said)]
    end.cancel()
    found = {Kernel(*json.loads(line)) for line in lines}
    print(f"{len(found)} kernels; rehearsals that ended well: {sum(not share.returncode for share in shares)}")
    compile_side_by_side(list(found), start_compiler(torch.device("cuda", 0)))


def whole_lines(said: bytes) -> list[bytes]:
    """Without the one that the end of its process cut short."""
    return said.split(b"\n")[:-1]


def kernels_of(name, precision):
    """Of training steps, evaluations and the fused network, at the tests' sizes."""
    found = []
    for work in works(name, precision):
        try:
            with warnings.catch_warnings(action="ignore"):
                found += rehearse(work)
        except (RuntimeError, ValueError) as problem:
            print(f"{name}, {precision}: {problem}"[:300], file=sys.stderr)
        torch.cuda.empty_cache()
    return found


def works(name, precision):
    """The model is built and fused once, as in the tests; the smallest images come first."""
    values = {"graph": False, "precision": precision, "schedule": {"steps": 3, "warmup": 0}, "optimizer": {"lr": 1e-4}}
    stepper = Stepper(make(name).train(), config_from(values), Processes(torch.device("cuda")))
    dtype, model = PRECISIONS[precision], make(name).cuda().eval()
    fused = model.fused(dtype, graphs=False)
    cast = model.to(dtype)
    for batch, side in SIZES:
        images = 255 * torch.rand(batch, 3, side, side, device="cuda")
        labels = torch.randint(0, 5, (batch, side, side), device="cuda")
        (share,) = pixel_shares([labels], stepper.config.loss, stepper.processes)
        yield functools.partial(stepper._backward, images, labels, share)
        yield torch.no_grad()(functools.partial(cast, images.to(dtype)))
        yield functools.partial(fused, images)


if __name__ == "__main__":
    main()
