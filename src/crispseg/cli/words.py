"""Words that several verbs take, and what is done about them alike."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from crispseg.errors import UserError

if TYPE_CHECKING:
    from crispseg.train.finish import Result


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Which labelled images: of `crisp eval` and `crisp analyze`."""
    data = parser.add_argument_group("data")
    data.add_argument("--protocol", help="e.g. potsdam/paper5 (default: the run's or the folder's own)")
    data.add_argument("--split", choices=("train", "val", "test"), help="default: the one the protocol is scored on")
    data.add_argument("--classes", metavar="FILE", help="class table: a file, or a known set's name")
    data.add_argument("--split-file", metavar="CSV", help="a split.csv that is not in the folder")


def add_run_arguments(parser: argparse.ArgumentParser, words: str, meaning: str) -> None:
    """A run to start or to go on with: of `crisp train` and `crisp pretrain`."""
    parser.add_argument("words", nargs="*", metavar=words, help=meaning)
    parser.add_argument("--resume", type=Path, metavar="RUN", help="continue the run in this folder")


def start_or_resume(
    args: argparse.Namespace,
    start: Callable[[str | None, list[str], bool], Result],
    resume: Callable[[Path, list[str], bool], Result],
    nothing: str,
) -> int:
    """`start` is called with a config (or none), key=value words and whether to be quiet; `nothing` says what is
    missing where there are neither."""
    from crispseg.cli.printer import Printer

    out = Printer.of(args)
    config, words = split_words(args.words)
    if args.resume is not None:
        if config is not None:
            raise UserError(f"--resume takes the config of {args.resume}; leave {config} out")
        result = resume(args.resume, words, out.quiet)
    elif config is None and not words:
        raise UserError(nothing)
    else:
        result = start(config, words, out.quiet)
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
