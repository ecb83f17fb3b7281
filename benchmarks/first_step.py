"""How long a new machine waits: the first training step, the first validation, the first prediction.

  python benchmarks/first_step.py --out benchmarks/results/first_step_h200.json

Each starts with an empty cache of kernels in a process of its own, and is timed with all that comes with it but loading
torch and making the model: rehearsal, kernels compiled side by side, the recording of the graph. Beside it the second
one of the same process: what it takes when nothing is left to compile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

WORKS = ("step", "validation", "prediction")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="crisp_tiny")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--only", choices=WORKS, help="in this process, with the cache it has")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    if args.only:
        print(json.dumps(timed(args.only, args.model, args.device, args.batch, args.size)))
        return 0
    found = {work: _in_a_new_process(work, args) for work in WORKS}
    text = json.dumps({"model": args.model, "batch": args.batch, "size": args.size, "seconds": found}, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")
    return 0


def _in_a_new_process(work: str, args: argparse.Namespace) -> dict[str, Any]:
    given = ["--only", work, "--model", args.model, "--device", args.device]
    given += ["--batch", str(args.batch), "--size", str(args.size)]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TRITON_CACHE_DIR": cache}
        done = subprocess.run([sys.executable, __file__, *given], env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def timed(work: str, name: str, device: str, batch: int, size: int) -> dict[str, float]:
    import torch

    import crispseg
    from crispseg.models.base import ModelInfo
    from crispseg.train.config import config_from
    from crispseg.train.distributed import Processes
    from crispseg.train.step import Part, Stepper

    model = crispseg.create_model(name, num_classes=6)
    model.info = ModelInfo(mean=(100.0,) * 3, std=(50.0,) * 3)
    images = 255 * torch.rand(batch, 3, size, size, device=device)
    labels = torch.randint(0, 6, (batch, size, size), device=device)
    half = device != "cpu"

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize()

    call: Callable[[], Any]
    if work == "prediction":
        model = model.to(device).eval()
        wait()
        begin = time.perf_counter()
        fused = model.fused(torch.bfloat16 if half else torch.float32)
        call = lambda: fused(images)  # noqa: E731
    else:
        schedule = {"schedule": {"steps": 3, "warmup": 0}}
        config = config_from({"precision": "bf16" if half else "fp32", "optimizer": {"lr": 1e-4}, **schedule})
        stepper = Stepper(model, config, Processes(torch.device(device)))
        part = Part(images, labels, [""] * batch)
        call = lambda: stepper.step(0, [part])  # noqa: E731
        if work == "validation":
            model.eval()
            call = torch.inference_mode()(lambda: stepper.logits(images))
        wait()
        begin = time.perf_counter()
    call()
    wait()
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    call()
    wait()
    return {"first": round(first, 2), "second": round(time.perf_counter() - begin, 4)}


if __name__ == "__main__":
    sys.exit(main())
