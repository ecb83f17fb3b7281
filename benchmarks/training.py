"""Images per second of training, of its steps alone (one batch again and again) and of its loader alone.

  python benchmarks/training.py --out benchmarks/results/training.json
  python benchmarks/training.py --data ../shared/data/dubai --protocol dubai/own5 precision=bf16 compile=true
  python benchmarks/training.py --without training_products batch_size=4 crop=256       what that is worth on a CPU

Words key=value change the training config. Without --data it generates images with the sizes of the dubai set. The
loader keeps the device fed when "training" is close to "steps" and "loader" is above both. --without takes steps with
and without something in turn, and keeps the best of each: their ratio holds on a machine with other work, too.

No number without a check: the gradients of the first batch must be as close to those of torch's formulas in float32 as
the formulas' own gradients in this precision are, or twice that. It takes the memory of a float32 step.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import itertools
import json
import math
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config
from loader import generate  # beside this file
from profile_fused import added, launches, table

from crispseg import ops
from crispseg.bench.check import relative_error
from crispseg.data import make_loader, open_folder
from crispseg.files import write_json, write_text
from crispseg.ops.dispatch import kernels_wanted
from crispseg.train.config import TrainConfig, train_config
from crispseg.train.distributed import Processes
from crispseg.train.setup import build_model, choose_device, choose_workers, complete, training_set
from crispseg.train.step import Part, Stepper, pixel_shares, use_fast_kernels

# Errors that need no comparison: sums in another order. On a CPU, in float32, the formulas are as far from float64.
_SLACK = {"cpu": 1e-3, "cuda": 1e-4}


def measure(
    config: TrainConfig,
    warm_up: int,
    steps: int,
    steps_alone: bool,
    profile: Path | None = None,
    without: Sequence[str] = (),
) -> dict[str, Any]:
    device = choose_device(config.device)
    folder = open_folder(config.data.path, protocol=config.data.protocol)
    config = complete(config, folder, device)
    assert config.batch_size is not None
    processes = Processes(torch.device(device))
    use_fast_kernels(processes.device)
    torch._inductor.config.fallback_random = True  # compiled code drops the paths that torch's operations would
    dataset, workers = training_set(config, folder), choose_workers(config, processes.device)
    stepper = Stepper(build_model(config, folder), config, processes)

    def batches() -> Iterator[Part]:
        loader = make_loader(dataset, config.batch_size or 1, warm_up + steps, workers=workers, device=device)
        return (Part(*batch) for batch in loader)

    def train_on(part: Part) -> None:
        stepper.step(0, [part])

    def timed(parts: Iterator[Part], work: Callable[[Part], None]) -> float:
        return _images_per_second(parts, work, config.batch_size or 1, warm_up, steps, device)

    part = next(batches())
    errors = _checked(stepper, part)
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    speeds = {"steps": timed(itertools.repeat(part), train_on)}
    if without:
        if stepper.graphed is not None:
            raise SystemExit("--without: a recorded step cannot change; give graph=false")
        speeds |= _in_turn(lambda: train_on(part), without, config.batch_size, steps, device)
    if profile is not None:
        name = f"{config.model.name}: one training step, {config.batch_size} crops of {config.crop} px"
        rows = added(launches(lambda: train_on(part)))
        write_text(profile, table(name, 1e3 * config.batch_size / speeds["steps"], rows))
    if not steps_alone:
        speeds["loader"] = timed(batches(), lambda part: None)
        speeds["training"] = timed(batches(), train_on)
        speeds["training / steps"] = round(speeds["training"] / speeds["steps"], 3)
        speeds["loader / training"] = round(speeds["loader"] / speeds["training"], 2)
    return {
        "model": config.model.name,
        "batch": config.batch_size,
        "crop": config.crop,
        "precision": config.precision,
        "compile": config.compile,
        "workers": workers,
        "threads": torch.get_num_threads() if device == "cpu" else None,
        "graph": config.graph,
        "kernels": kernels_wanted(),
        **speeds,
        **errors,
        "peak_gpu_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if device == "cuda" else None,
    }


def _checked(stepper: Stepper, part: Part) -> dict[str, float]:
    """The relative error of the gradients as they are to be timed, and of the formulas' in the same precision."""
    formulas = copy.deepcopy(stepper.model)
    eager = dataclasses.replace(stepper.config, compile=False, graph=False)
    found = _gradients(stepper, part)
    with ops.only("torch"):
        same = _gradients(Stepper(formulas, eager, stepper.processes), part)
        exact = dataclasses.replace(eager, precision="fp32")
        torch.set_float32_matmul_precision("highest")
        truth = _gradients(Stepper(formulas, exact, stepper.processes), part)
        use_fast_kernels(stepper.processes.device)
    error, formulas_error = relative_error(found, truth), relative_error(same, truth)
    if not math.isfinite(error) or error > 2 * formulas_error + _SLACK[stepper.processes.device.type]:
        raise SystemExit(f"wrong gradients: relative error {error}, of the formulas in this precision {formulas_error}")
    return {"gradient error": error, "formulas' gradient error": formulas_error}


def _gradients(stepper: Stepper, part: Part) -> tuple[torch.Tensor, ...]:
    """Of the loss of one batch, all parameters' in one tensor; the same paths are dropped each time."""
    device, model = stepper.processes.device, stepper.model.train()
    images, labels = part.images.to(device), part.labels.to(device)
    torch.manual_seed(0)
    stepper._backward(images, labels, pixel_shares([labels], stepper.config.loss, stepper.processes)[0])
    found = torch.cat([p.grad.detach().flatten().clone() for p in model.parameters() if p.grad is not None])
    model.zero_grad(set_to_none=True)
    return (found,)


def _images_per_second(
    parts: Iterator[Part], work: Callable[[Part], None], batch: int, warm_up: int, steps: int, device: str
) -> float:
    for part in itertools.islice(parts, warm_up):
        work(part)
    _wait(device)
    begin = time.perf_counter()
    for part in itertools.islice(parts, steps):
        work(part)
    _wait(device)
    return round(batch * steps / (time.perf_counter() - begin), 2)


def _in_turn(step: Callable[[], None], without: Sequence[str], batch: int, steps: int, device: str) -> dict[str, float]:
    """Images per second of the best step with and of the best without these."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _, whole in itertools.product(range(steps), seconds):
        with ops.off(*(() if whole else without)):
            begin = time.perf_counter()
            step()
            _wait(device)
            seconds[whole].append(time.perf_counter() - begin)
    best, other = min(seconds[True]), min(seconds[False])
    speeds = {"best step": batch / best, f"best step without {', '.join(without)}": batch / other}
    return {name: round(speed, 2) for name, speed in speeds.items()} | {"time / without": round(best / other, 3)}


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="key=value", help="of the training config")
    parser.add_argument("--data", help="a data folder (default: generated)")
    parser.add_argument("--protocol", help="protocol to open it with")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warm-up", type=int, default=15)
    parser.add_argument("--steps-alone", action="store_true", help="leave loader and training out")
    parser.add_argument("--without", nargs="+", default=[], metavar="KERNEL", help="of those that crisp doctor lists")
    parser.add_argument("--profile", type=Path, help="write what each kernel of a step takes on a GPU as Markdown")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        data = args.data or str(generate(Path(temporary) / "data"))
        words = [f"data={data}", *([f"data.protocol={args.protocol}"] if args.protocol else []), *args.words]
        config = train_config(None, words)
        result = measure(config, args.warm_up, args.steps, args.steps_alone, args.profile, args.without)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    result |= {"gpu": gpu, "machine": platform.machine(), "torch": torch.__version__, "data": args.data or "generated"}
    print(json.dumps(result, indent=2))
    if args.out is not None:
        write_json(args.out, result)


if __name__ == "__main__":
    main()
