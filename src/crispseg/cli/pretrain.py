"""Train a backbone before segmentation: on labelled photos and scenes, by a teacher, or on pictures alone.

  crisp pretrain tiny_imagenet data=data/tiny_imagenet model=vssd_nano       a config by name (crisp configs)
  crisp pretrain own_imagery data=my_geotiffs                                no labels needed
  crisp pretrain data=my_folder labels=false model.weights=vssd_nano         what is said of the only set; a start
  crisp pretrain --resume runs/tiny_imagenet-vssd_nano-1                     after a kill, bit for bit on a CPU
  torchrun --nproc-per-node 8 -m crispseg.cli.main pretrain imagenet data=imagenet model=vssd_tiny

`crisp configs pretraining` lists every key with its meaning.

The run goes into `crisp train ... model.weights=RUN`, which means its folder backbone/.
"""

from __future__ import annotations

import argparse

from crispseg.cli.words import add_run_arguments, start_or_resume


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, "CONFIG or key=value", "a YAML file first, or none; then keys")


def run(args: argparse.Namespace) -> int:
    from crispseg.pretrain.config import pretrain_config
    from crispseg.pretrain.loop import pretrain, resume

    return start_or_resume(
        args,
        lambda config, words, quiet: pretrain(pretrain_config(config, words), quiet=quiet),
        lambda folder, words, quiet: resume(folder, words, quiet=quiet),
        "nothing to learn from: give data=FOLDER or a config; `crisp pretrain --help` shows examples",
    )
