"""The option that every verb with outputs has: what to do when they are there already."""

from __future__ import annotations

import argparse

from crispseg.outputs import EXISTING


def add_existing(parser: argparse.ArgumentParser, choices: tuple[str, ...] = EXISTING) -> None:
    parser.add_argument(
        "--existing", default="refuse", choices=choices, help="what to do when an output is there already (%(default)s)"
    )
