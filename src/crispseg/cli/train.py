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

from crispseg.cli.words import add_run_arguments, start_or_resume


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, "FOLDER, CONFIG or key=value", "data or config first, then keys")


def run(args: argparse.Namespace) -> int:
    from crispseg.train.config import train_config
    from crispseg.train.loop import resume, train

    return start_or_resume(
        args,
        lambda config, words, quiet: train(train_config(config, words), quiet=quiet),
        lambda folder, words, quiet: resume(folder, words, quiet=quiet),
        "nothing to train on: give a data folder or a config; `crisp train --help` shows examples",
    )
