"""Train a model; what is left open is chosen for the data and the machine.

  crisp train my_folder                                  images/ and masks/, nothing else needed
  crisp train potsdam data=data/potsdam seed=1           a config by name (crisp configs), and some of its keys
  crisp train my.yaml                                    a config of your own
  crisp train --resume runs/potsdam-crisp_tiny-1         continue after a kill, bit for bit on a CPU
  torchrun --nproc-per-node 4 -m crispseg.cli.main train potsdam data=data/potsdam

`crisp configs default` lists every key with its meaning.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from crispseg.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="*", metavar="FOLDER, CONFIG or key=value", help="data or config first, then keys"
    )
    parser.add_argument("--resume", type=Path, metavar="RUN", help="continue the run in this folder")


def run(args: argparse.Namespace) -> int:
    from crispseg.cli.printer import Printer
    from crispseg.train.config import train_config
    from crispseg.train.loop import resume, train

    out = Printer.of(args)
    config, words = split_words(args.words)
    if args.resume is not None:
        if config is not None:
            raise UserError(f"--resume takes the config of {args.resume}; leave {config} out")
        result = resume(args.resume, words, quiet=out.quiet)
    elif config is None and not words:
        raise UserError("nothing to train on: give a data folder or a config; `crisp train --help` shows examples")
    else:
        result = train(train_config(config, words), quiet=out.quiet)
    if result.first:
        values = {"run": result.out, "finished": result.finished, **result.values}
        out.result(values, *([str(result)] if result.finished else []))
    return 0 if result.finished or not result.signal else 128 + result.signal


def split_words(words: list[str]) -> tuple[str | None, list[str]]:
    """The config, if the words begin with one, and the key=value words; a data folder in its place becomes a word."""
    from crispseg.configs import find_config_or_folder

    if not words or "=" in words[0]:
        return None, words
    found = find_config_or_folder(words[0])
    return (None, [f"data={found}", *words[1:]]) if found.is_dir() else (str(found), words[1:])
