"""Finds the verb, parses its words, runs it; turns a UserError into one line and exit status 1."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

# Verb -> what it does. The module crispseg.cli.<verb> is imported only when its verb is asked for.
VERBS = {
    "demo": "segment a real scene with a shipped model and score it",
    "prepare": "make a data set's archives ready for training",
    "info": "what a model costs, or what a data folder holds",
    "pretrain": "train a backbone on photos, scenes or unlabelled imagery",
    "train": "train a model on a folder of images and masks",
    "convert": "make a model of a checkpoint that a rival's authors published",
    "eval": "score a model, or compare two",
    "analyze": "look into a trained model: spectra, gates, prototypes, errors",
    "predict": "segment whole scenes into georeferenced maps",
    "export": "write a model as a file for other programs: ONNX, .pt2",
    "vectorize": "turn a class map into polygons",
    "view": "look at a map, a run or a report in the browser",
    "suggest": "the windows of a map where labels would help most",
    "ablate": "run a table of experiments over several seeds",
    "bench": "time and memory of any model, side by side",
    "push": "put a model folder on the Hugging Face hub",
    "configs": "list or print the configs and tables that come along",
    "models": "list the models that can be created, and the trained ones that come along",
    "doctor": "what this machine has and what works on it",
    "completion": "a script that completes these words in your shell",
}


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    _hush_libraries()
    from crispseg import __version__
    from crispseg.errors import UserError, unknown

    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if words[0] in ("-V", "--version"):
        print(f"crispseg {__version__}")
        return 0
    if words[0] not in VERBS:
        print(f"crisp: {unknown('command', words[0], VERBS)}", file=sys.stderr)
        return 2
    try:
        return _run_verb(words[0], words[1:])
    except UserError as error:
        print(f"crisp: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        print("crisp: interrupted", file=sys.stderr)
        return 128 + (stop.args[0] if stop.args else signal.SIGINT)  # a verb that listens for SIGTERM names it
    except (MemoryError, RuntimeError) as error:
        told = _shortage(error)
        if not told:
            raise
        print(f"crisp: {told}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output (head, less) has gone; there is nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a folder that may not be looked into, a disk that fails; without a name it is ours
        if error.filename is None:
            raise
        print(f"crisp: cannot get at {os.fsdecode(error.filename)}: {error.strerror}", file=sys.stderr)
        return 1


def _shortage(error: BaseException) -> str:
    """What to do about memory that is short, of this process or of those that load data; empty for other errors."""
    from crispseg.memory import is_shortage

    if str(error).startswith("DataLoader worker (pid"):  # torch raises it wherever the main thread is
        return (
            "a process that loads pictures was killed, most likely because memory is short (in a container, shared "
            "memory: docker run --shm-size 8g); take fewer of them with workers=N, 0 for none"
        )
    return "out of memory; take smaller crops, tiles or batches, or a smaller model" if is_shortage(error) else ""


def _run_verb(verb: str, words: list[str]) -> int:
    parser = verb_parser(verb)
    # names that begin with a dash may follow "--", which argparse forgets when it mixes files and options
    args = parser.parse_args(words) if "--" in words else parser.parse_intermixed_args(words)
    return importlib.import_module(f"crispseg.cli.{verb}").run(args) or 0


def verb_parser(verb: str) -> argparse.ArgumentParser:
    """What understands the words of one verb."""
    module = importlib.import_module(f"crispseg.cli.{verb}")
    parser = argparse.ArgumentParser(
        prog=f"crisp {verb}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_words(parser, module)
    return parser


def _add_words(parser: argparse.ArgumentParser, module: Any) -> None:
    from crispseg.cli import printer

    module.add_arguments(parser)
    printer.add_arguments(parser)


def whole_parser() -> argparse.ArgumentParser:
    """All verbs in one parser, for shell completion."""
    parser = argparse.ArgumentParser(prog="crisp")
    verbs = parser.add_subparsers(metavar="VERB")
    for verb, summary in VERBS.items():
        _add_words(verbs.add_parser(verb, help=summary), importlib.import_module(f"crispseg.cli.{verb}"))
    return parser


def _hush_libraries() -> None:
    """What torch logs about itself is not for the user; whoever sets this variable gets it back."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def _overview() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:<{width}}  {summary}" for verb, summary in VERBS.items())
    return f"""usage: crisp VERB ...

Semantic segmentation of remote sensing imagery with CRISP.

{verbs}

crisp VERB --help says more. Every verb takes --json (the result for programs) and --quiet (no progress); results go to
standard output, all else to standard error. Exit status: {_exit_codes()}."""


def _exit_codes() -> str:
    from crispseg.cli.printer import EXIT_CODES

    return "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())


if __name__ == "__main__":
    sys.exit(main())
