"""Where a fused model spends its time on the GPU: its latency, and what each kernel adds to it, as Markdown.

  python benchmarks/profile_fused.py --model crisp_tiny --batch 1 16 --out profile.md

The model is replayed from a CUDA graph, once its output agrees with the model's in float32. How
kernels that overlap are counted is said in `kernel_profile.py`.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch
from kernel_profile import added, launches, table  # beside this file

import crispseg
from crispseg.bench.check import NETWORK_BOUNDS, relative_error
from crispseg.bench.settings import DTYPES
from crispseg.files import write_text
from crispseg.fused.graphs import Recorder, Recording

REPLAYS = 50


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
