"""Fused networks of several versions of the source, timed in turn in one run: what a change to kernels is worth.

  git worktree add ../before COMMIT
  python benchmarks/compare_trees.py before=../before/src now=src --out benchmarks/results/compare_trees_h200.json

A process for each tree makes and records its networks, all side by side, which also compiles their kernels; then one
after the other replays them, seven rounds, every other one backwards. Nothing is said of a tree whose result for the
same image and weights is further from the last tree's than half precision rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROUNDS, CALLS = 7, {1: 100, 16: 15}
FARTHEST = 0.03  # relative difference of logits; two right ones in bf16 are about 0.01 apart


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="+", metavar="NAME=SRC")
    parser.add_argument("--models", nargs="+", default=["crisp_nano", "crisp_tiny"])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    words = list(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(words)
    if args.work:
        return work(args, *args.work)
    values = compare(args, words)
    text = markdown(values)
    print(text)
    if args.out:
        args.out.write_text(json.dumps(values, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(text)
    return 0 if all(d <= FARTHEST for d in values["difference"].values()) else 1


def compare(args: argparse.Namespace, words: list[str]) -> dict[str, Any]:
    trees = dict(tree.split("=", 1) for tree in args.trees)
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory() as folder:
        workers = {}
        for name, source in trees.items():
            environment = {**os.environ, "PYTHONPATH": str(Path(source).resolve())}
            command = [sys.executable, __file__, *words, "--work", name, folder]
            workers[name] = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        for name, worker in workers.items():
            if _line(worker, "ready") is None:
                raise SystemExit(f"{name} failed; see above")
        for number in range(ROUNDS):
            for name in list(trees)[:: 1 if number % 2 == 0 else -1]:
                print(file=workers[name].stdin, flush=True)
                rounds[name].append(json.loads(_line(workers[name], "{") or "{}"))
        for worker in workers.values():
            worker.communicate()
        difference = {name: _difference(args.models, folder, name, list(trees)[-1]) for name in trees}
    medians = {
        name: {case: statistics.median(r[case] for r in found) for case in found[0]} for name, found in rounds.items()
    }
    return {"command": " ".join(["python benchmarks/compare_trees.py", *words]), "milliseconds": medians,
            "difference": difference, "rounds": rounds}  # fmt: skip


def _line(worker: subprocess.Popen[str], start: str) -> str | None:
    assert worker.stdout is not None
    return next((line for line in worker.stdout if line.startswith(start)), None)


def _difference(models: Sequence[str], folder: str, name: str, other: str) -> float:
    """The largest relative difference of two trees' logits."""
    import torch

    def logits(tree: str, model: str) -> torch.Tensor:
        found: torch.Tensor = torch.load(Path(folder) / f"{tree}-{model}.pt")
        return found

    pairs = [(logits(name, model), logits(other, model)) for model in models]
    return max(((a - b).norm() / b.norm()).item() for a, b in pairs)


def work(args: argparse.Namespace, name: str, folder: str) -> int:
    """One tree's process: a line on stdin, and all its networks' times go out."""
    import torch

    import crispseg

    torch.backends.cudnn.benchmark = True
    cases: dict[str, tuple[Callable[[], Any], int]] = {}
    for model in args.models:
        torch.manual_seed(0)
        fused = crispseg.create_model(model, num_classes=6).eval().to(args.device).fused(torch.bfloat16, graphs=False)
        for batch in args.batch:
            image = torch.randn(batch, 3, args.size, args.size).to(args.device, torch.bfloat16)
            cases[f"{model}, batch {batch}"] = replayed(fused, image), CALLS.get(batch, 15)
        torch.save(fused(image[:1]).double().cpu(), Path(folder) / f"{name}-{model}.pt")
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps({case: milliseconds(call, n, args.device) for case, (call, n) in cases.items()}), flush=True)
    return 0


def replayed(fused: Callable[[Any], Any], image: Any) -> Callable[[], Any]:
    if not image.is_cuda:
        return lambda: fused(image)
    from crispseg.fused.graphs import Recorder

    recording = Recorder().record(lambda x: (fused(x),), (image,))
    return recording.run


def milliseconds(call: Callable[[], Any], count: int, device: str) -> float:
    """The median of single calls, by the device's clock where it has one."""
    import torch

    times = []
    for _ in range(3 + count if device == "cuda" else 1):
        if device == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        else:
            began = time.perf_counter()
            call()
            times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times[3:] or times)


def markdown(values: dict[str, Any]) -> str:
    """A row for each case; in brackets the ratio to the first tree."""
    medians: dict[str, dict[str, float]] = values["milliseconds"]
    first = next(iter(medians.values()))
    lines = [f"`{values['command']}`", "", f"| ms | {' | '.join(medians)} |", "|---|" + "---|" * len(medians)]
    for case in first:
        cells = [f"{found[case]:.4g} ({found[case] / first[case]:.3f})" for found in medians.values()]
        lines.append(f"| {case} | {' | '.join(cells)} |")
    apart = ", ".join(f"{name} {value:.1e}" for name, value in values["difference"].items())
    return "\n".join([*lines, "", f"Logits, relative to the last tree's: {apart}."]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
