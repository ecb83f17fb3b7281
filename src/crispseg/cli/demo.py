"""Train a small model on a generated scene for about a minute, and draw another scene before and after."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write to (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to train (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> int:
    from crispseg.demo.run import run_demo

    scores = run_demo(args.out, args.seconds, args.seed)
    before, after = f"{scores['before']:.3f} before", f"{scores['after']:.3f} after {scores['steps']:.0f} steps"
    print(f"mIoU on a scene not trained on: {before}, {after}")
    print(f"picture: {args.out / 'before_after.png'}    model: {args.out / 'model'}")
    return 0
