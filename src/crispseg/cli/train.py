"""Train a model; what is left open is chosen for the data and the machine.

  crisp train data=my_folder                             images/ and masks/, nothing else needed
  crisp train configs/potsdam.yaml data=potsdam seed=1   a config, and some of its keys
  crisp train --resume runs/potsdam-crisp_tiny-1         continue after a kill, bit for bit on a CPU
  torchrun --nproc-per-node 4 -m crispseg.cli.main train configs/potsdam.yaml data=potsdam

configs/default.yaml lists every key with its meaning; docs/training.md says more.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from crispseg.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="CONFIG or key=value", help="a YAML file first, or none; then keys")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="continue the run in this folder")


def run(args: argparse.Namespace) -> int:
    from crispseg.train.config import train_config
    from crispseg.train.loop import resume, train

    config, words = split_words(args.words)
    if args.resume is not None:
        if config is not None:
            raise UserError(f"--resume takes the config of {args.resume}; leave {config} out")
        result = resume(args.resume, words)
    elif config is None and not words:
        raise UserError("nothing to train on: give data=FOLDER or a config file; `crisp train --help` shows examples")
    else:
        result = train(train_config(config, words))
    return 0 if result.finished or not result.signal else 128 + result.signal


def split_words(words: list[str]) -> tuple[str | None, list[str]]:
    """The config file, if the words begin with one, and the key=value words."""
    if words and "=" not in words[0]:
        return words[0], words[1:]
    return None, words
