"""Where a fused model spends its time on the GPU: its latency, and what each kernel adds to it, as Markdown.

  python benchmarks/profile_fused.py --model crisp_tiny --batch 1 16 --out profile.md

The model is replayed from a CUDA graph, once its output agrees with the model's in float32.

Kernels overlap: those launched early wait on the GPU for the one before, and there may be work on a second stream. What
a kernel adds is how far it moves the end of all work so far; the sum is the time from the first kernel's start to the
last one's end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

import crispseg
from crispseg.bench.check import NETWORK_BOUNDS, relative_error
from crispseg.bench.settings import DTYPES
from crispseg.files import write_text
from crispseg.fused.graphs import Recorder, Recording

REPLAYS = 50
RUNS = 3
NAME_LENGTH = 90
_KINDS = ("kernel", "gpu_memcpy", "gpu_memset")


class Launch(NamedTuple):
    name: str
    start: float  # microseconds
    took: float


def launches(run: Callable[[], Any]) -> list[Launch]:
    """Of one run, in the order of their starts."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        for _ in range(RUNS):
            run()
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        trace.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    found = sorted((Launch(e["name"], e["ts"], e["dur"]) for e in events if e.get("cat") in _KINDS), key=lambda x: x[1])
    count = len(found) // RUNS
    return found[count : 2 * count]


def added(found: Sequence[Launch]) -> list[tuple[str, int, float]]:
    """Name, launches, and microseconds that they add; the most first."""
    total: dict[str, list[float]] = defaultdict(list)
    end = found[0].start
    for launch in found:
        total[launch.name].append(max(0.0, launch.start + launch.took - end))
        end = max(end, launch.start + launch.took)
    return sorted(((name, len(times), sum(times)) for name, times in total.items()), key=lambda row: -row[2])


def table(title: str, latency: float, rows: Sequence[tuple[str, int, float]]) -> str:
    lines = [
        f"## {title}",
        "",
        f"{latency:.3f} ms; {sum(row[1] for row in rows)} kernels, {sum(row[2] for row in rows):.0f} µs from the first "
        "to the last under the profiler.",
        "",
        "| adds µs | launches | µs each | kernel |",
        "|---|---|---|---|",
    ]
    for name, count, time in rows:
        shown = name.replace("|", "\\|")[:NAME_LENGTH]
        lines.append(f"| {time:.1f} | {count} | {time / count:.1f} | `{shown}` |")
    return "\n".join(lines) + "\n"


def milliseconds(recording: Recording) -> float:
    """The median of single replays."""
    times = []
    for _ in range(REPLAYS + 5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        recording.run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[5:])


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="crisp_tiny")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--precision", default="bf16", choices=DTYPES)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    model = crispseg.create_model(args.model).eval().cuda()
    fused = model.fused(DTYPES[args.precision], graphs=False)
    parts = [f"# {args.model}.fused() on one {torch.cuda.get_device_name()}, torch {torch.__version__}\n"]
    for batch in args.batch:
        image = torch.randn(batch, 3, args.size, args.size, device="cuda").to(DTYPES[args.precision])
        recording = Recorder().record(lambda x: (fused(x),), (image,))
        error = relative_error(recording.run(), (model(image.float()),))
        if error > NETWORK_BOUNDS[args.precision]:
            raise SystemExit(f"batch {batch}: relative error {error:.1e}; not timed")
        title = f"batch {batch}, {args.size} px, {args.precision}"
        parts.append(table(title, milliseconds(recording), added(launches(recording.run))))
    text = "\n".join(parts)
    write_text(args.out, text)
    print(text)


if __name__ == "__main__":
    main()
