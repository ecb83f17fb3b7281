"""Peak memory, disk and time of running scenes of growing height as one image; and against the whole array.

    python benchmarks/exact_memory.py --scenes 1024x4096 4096x4096 16384x4096 --memory-limit 512

Each scene runs in a process of its own. The scene is random numbers made row by row and its result is dropped, so
what is measured is the run itself. Results go to benchmarks/results/exact_memory.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from crispseg.files import write_json, write_text

RESULTS = Path(__file__).parent / "results"
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="crisp_nano")
    scenes = ["1024x4096", "4096x4096", "16384x4096"]
    parser.add_argument("--scenes", nargs="+", default=scenes, metavar="HEIGHTxWIDTH")
    parser.add_argument("--memory-limit", type=int, default=512, help="MiB")
    parser.add_argument("--spill", default=None, help="folder for temporary files")
    parser.add_argument("--no-whole", action="store_true", help="leave out the first scene as a whole array")
    parser.add_argument("--one", choices=("stream", "whole"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args)))
        return
    rows = [in_own_process("stream", scene, args) for scene in args.scenes]
    if not args.no_whole:
        rows.append(in_own_process("whole", args.scenes[0], args))
    report(rows, args)


def in_own_process(kind: str, scene: str, args: argparse.Namespace) -> dict[str, Any]:
    """This process must stay small: a child's peak starts from the size of its parent."""
    command = [sys.executable, __file__, "--one", kind, "--scenes", scene]
    command += ["--model", args.model, "--memory-limit", str(args.memory_limit)]
    command += ["--spill", args.spill] if args.spill else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{shlex.join(command)} failed:\n{done.stderr}")
    row: dict[str, Any] = json.loads(done.stdout)
    print(row, flush=True)
    return row


def measure(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    from crispseg import exact
    from crispseg.models.registry import create_model

    torch.manual_seed(0)
    model = create_model(args.model, num_classes=6).eval()
    limit = args.memory_limit * MIB
    height, width = map(int, args.scenes[0].split("x"))
    spill = args.spill or tempfile.gettempdir()
    generator = torch.Generator().manual_seed(0)

    def read_rows(top: int, bottom: int) -> torch.Tensor:
        return torch.randn(3, bottom - top, width, generator=generator)

    exact.logits(model, read_rows(0, 64)[:, :, :64])  # the first call of a kernel is slow
    before, start, cpu_start = peak(), time.perf_counter(), time.process_time()
    row: dict[str, Any] = {"kind": args.one, "height": height, "width": width}
    if args.one == "stream":
        exact.segment_stream(model, read_rows, height, width, lambda top, rows: None, memory_limit=limit, spill=spill)
    else:
        image = torch.cat([read_rows(top, top + 1) for top in range(height)], dim=1)
        with torch.no_grad():
            whole = model(image[None])[0]
    row |= {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu_start,
        "peak_mib": (peak() - before) / MIB,
    }
    if args.one == "stream":
        planned = exact.estimate(model, height, width, memory_limit=limit)
        row |= {
            "planned_mib": planned.memory_bytes / MIB,
            "estimated_seconds": planned.seconds,
            "disk_mib": planned.disk_bytes / MIB,
            "disk_traffic_mib": planned.traffic_bytes / MIB,
        }
    else:
        streamed = exact.logits(model, image, memory_limit=limit, spill=spill)
        row["relative_error"] = float((streamed - whole).abs().max() / whole.abs().max())
    return row | {"torch": torch.__version__, "threads": torch.get_num_threads()}


def peak() -> int:
    """Bytes of memory this process held at most so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def report(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    command = "python " + shlex.join(["benchmarks/exact_memory.py", *sys.argv[1:]])
    facts = {
        "command": command,
        "model": args.model,
        "memory_limit_mib": args.memory_limit,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "torch": rows[0]["torch"],
        "threads": rows[0]["threads"],
    }
    lines = [
        f"# A scene as one image: {args.model}, memory limit {args.memory_limit} MiB",
        "",
        f"`{command}` on {facts['machine']} ({facts['threads']} threads), torch {facts['torch']}.",
        "Peak memory is beyond the model and torch themselves.",
        "",
        "| scene | peak memory, MiB | planned, MiB | temporary files, MiB | CPU seconds | Mpx per CPU second |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        scene = f"{row['height']} x {row['width']}" + (", whole array" if row["kind"] == "whole" else "")
        planned = f"{row['planned_mib']:.0f} | {row['disk_mib']:.0f}" if row["kind"] == "stream" else "|"
        seconds = row["cpu_seconds"]
        speed = row["height"] * row["width"] / seconds / 1e6
        lines.append(f"| {scene} | {row['peak_mib']:.0f} | {planned} | {seconds:.0f} | {speed:.2f} |")
    for row in rows:
        if row["kind"] == "whole":
            lines += ["", f"Largest relative difference of the two results: {row['relative_error']:.1e}."]
    write_text(RESULTS / "exact_memory.md", "\n".join(lines) + "\n")
    write_json(RESULTS / "exact_memory.json", facts | {"rows": rows})
    print("\n".join(lines))


if __name__ == "__main__":
    main()
