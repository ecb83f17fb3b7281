"""Train a backbone before segmentation: on labelled photos and scenes, by a teacher, or on pictures alone.

  crisp pretrain tiny_imagenet data=data/tiny_imagenet model=vssd_nano       a config by name (crisp configs)
  crisp pretrain own_imagery data=my_geotiffs                                no labels needed
  crisp pretrain --resume runs/tiny_imagenet-vssd_nano-1                     after a kill, bit for bit on a CPU
  torchrun --nproc-per-node 8 -m crispseg.cli.main pretrain imagenet data=imagenet model=vssd_tiny

`crisp configs pretraining` lists every key with its meaning.

The run's folder backbone/ goes into `crisp train ... model.weights=RUN/backbone`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from crispseg.cli.train import split_words
from crispseg.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="CONFIG or key=value", help="a YAML file first, or none; then keys")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="continue the run in this folder")


def run(args: argparse.Namespace) -> int:
    from crispseg.cli.printer import Printer
    from crispseg.pretrain.config import pretrain_config
    from crispseg.pretrain.loop import pretrain, resume

    out = Printer.of(args)
    config, words = split_words(args.words)
    if args.resume is not None:
        if config is not None:
            raise UserError(f"--resume takes the config of {args.resume}; leave {config} out")
        result = resume(args.resume, words, quiet=out.quiet)
    elif config is None and not words:
        raise UserError("nothing to learn from: give data=FOLDER or a config; `crisp pretrain --help` shows examples")
    else:
        result = pretrain(pretrain_config(config, words), quiet=out.quiet)
    if result.first:
        values = {"run": result.out, "finished": result.finished, **result.values}
        out.result(values, *([str(result)] if result.finished else []))
    return 0 if result.finished or not result.signal else 128 + result.signal
