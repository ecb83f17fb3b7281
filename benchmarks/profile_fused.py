"""Where a fused model spends its time on the GPU: each kernel's name, count and total, as Markdown.

python benchmarks/profile_fused.py --model crisp_tiny --batch 1 16 --out profile.md
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import crispseg
from crispseg.bench.settings import DTYPES
from crispseg.files import write_text

RUNS = 10
NAME_LENGTH = 90


def kernels(model: torch.nn.Module, image: torch.Tensor) -> list[tuple[str, int, float]]:
    """Name, launches and microseconds of each kernel, in one call of the model; the longest first."""
    for _ in range(5):
        model(image)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        for _ in range(RUNS):
            model(image)
        torch.cuda.synchronize()
    rows = [e for e in trace.key_averages() if e.device_type == DeviceType.CUDA and e.self_device_time_total > 0]
    found = [(e.key, round(e.count / RUNS), e.self_device_time_total / RUNS) for e in rows]
    return sorted(found, key=lambda row: -row[2])


def table(title: str, rows: list[tuple[str, int, float]]) -> str:
    launches, total = sum(row[1] for row in rows), sum(row[2] for row in rows)
    lines = [
        f"## {title}",
        "",
        f"{launches} kernels, {total:.0f} µs of them one after the other.",
        "",
        "| µs | launches | µs each | kernel |",
        "|---|---|---|---|",
    ]
    for name, count, time in rows:
        shown = name.replace("|", "\\|")[:NAME_LENGTH]
        lines.append(f"| {time:.1f} | {count} | {time / max(count, 1):.1f} | `{shown}` |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="crisp_tiny")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--precision", default="bf16", choices=DTYPES)
    parser.add_argument("--graphs", action="store_true", help="replay CUDA graphs (the kernels are the same)")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    fused = crispseg.create_model(args.model).eval().cuda().fused(DTYPES[args.precision], graphs=args.graphs)
    parts = [f"# {args.model}.fused() on one {torch.cuda.get_device_name()}, torch {torch.__version__}\n"]
    for batch in args.batch:
        image = torch.randn(batch, 3, args.size, args.size, device="cuda")
        parts.append(table(f"batch {batch}, {args.size} px, {args.precision}", kernels(fused, image)))
    text = "\n".join(parts)
    write_text(args.out, text)
    print(text)


if __name__ == "__main__":
    main()
