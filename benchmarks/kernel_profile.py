"""Which kernels a piece of work on a GPU runs, and what each adds to its time, as a Markdown table.

Kernels overlap: those launched early wait on the GPU for the one before, and there may be work on a second stream. What
a kernel adds is how far it moves the end of all work so far; the sum is the time from the first kernel's start to the
last one's end.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

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
