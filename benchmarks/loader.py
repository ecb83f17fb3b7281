"""Images per second of the training loader alone.

  python benchmarks/loader.py --workers 0 2 --out benchmarks/results/loader.json
  python benchmarks/loader.py --data ../shared/data/dubai --protocol dubai/own5 --workers 14

Without --data it generates 54 jpg images with the sizes of the dubai set. Prints a table, and JSON as the last line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crispseg.data import Augmentation, Folder, SegmentationDataset, make_loader, open_folder
from crispseg.files import write_json

SIZES = ((797, 644), (682, 658), (1099, 846), (1126, 1058), (1817, 2061), (2149, 1479))  # width, height of the tiles


def generate(root: Path) -> Path:
    """54 images of smooth random texture with blocky masks of five classes."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
    for tile, size in enumerate(SIZES):
        for part in range(1, 10):
            name = f"tile{tile}_part{part}"
            texture = Image.fromarray(rng.integers(0, 256, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8))
            texture.resize(size, Image.Resampling.BILINEAR).save(root / "images" / f"{name}.jpg")
            blocks = Image.fromarray(rng.integers(0, 5, (size[1] // 64, size[0] // 64), dtype=np.uint8))
            blocks.resize(size, Image.Resampling.NEAREST).save(root / "masks" / f"{name}.png")
    return root


def measure(folder: Folder, args: argparse.Namespace, workers: int) -> dict[str, Any]:
    augmentation = Augmentation(crop=args.crop)
    started = time.perf_counter()
    dataset = SegmentationDataset(folder, "train", augmentation, cache=args.cache)
    steps = args.warm_up + args.steps
    loader = iter(make_loader(dataset, args.batch, steps, workers=workers, device=args.device))
    next(loader)
    first = time.perf_counter() - started
    for _ in range(args.warm_up - 1):
        next(loader)
    begin = time.perf_counter()
    for _ in range(args.steps):
        next(loader)
    if args.device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    return {
        "workers": workers,
        "images_per_second": round(args.steps * args.batch / seconds, 1),
        "first_batch_s": round(first, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a data folder (default: generated)")
    parser.add_argument("--protocol", help="protocol to open it with")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--crop", type=int, default=512)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warm-up", type=int, default=20)
    parser.add_argument("--cache", help="folder for memory-mapped arrays (default: keep them in memory)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", help="also write the JSON here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(args.data) if args.data else generate(Path(scratch) / "generated")
        folder = open_folder(root, protocol=args.protocol)
        rows = [measure(folder, args, workers) for workers in args.workers]
    result = {
        "what": f"loader alone, batch {args.batch}, crop {args.crop}, {root.name} images, batches on {args.device}",
        "machine": {"cores": os.cpu_count(), "processor": platform.machine(), "torch": torch.__version__},
        "rows": rows,
    }
    print(f"{'workers':>8} {'images/s':>10} {'first batch s':>14}")
    for row in rows:
        print(f"{row['workers']:>8} {row['images_per_second']:>10} {row['first_batch_s']:>14}")
    if args.out:
        write_json(args.out, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
