"""Finds the verb, parses its words, runs it; turns a UserError into one line and exit status 1."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence

# Verb -> what it does. The module crispseg.cli.<verb> is imported only when its verb is asked for.
VERBS = {
    "demo": "segment a real scene with a shipped model and score it",
    "prepare": "make a data set's archives ready for training",
    "info": "what a model costs, or what a data folder holds",
    "train": "train a model on a folder of images and masks",
    "eval": "score a model, or compare two",
    "analyze": "look into a trained model: spectra, gates, prototypes, errors",
    "predict": "segment whole scenes into georeferenced maps",
    "vectorize": "turn a class map into polygons",
    "ablate": "run a table of experiments over several seeds",
    "bench": "time and memory of any model, side by side",
    "configs": "list or print the configs and tables that come along",
    "models": "list the models that can be created, and the trained ones that come along",
    "doctor": "what this machine has and what works on it",
}


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    from crispseg import __version__
    from crispseg.errors import UserError, unknown

    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if words[0] in ("-V", "--version"):
        print(f"crispseg {__version__}")
        return 0
    try:
        if words[0] not in VERBS:
            raise unknown("command", words[0], VERBS)
        return _run_verb(words[0], words[1:])
    except UserError as error:
        print(f"crisp: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("crisp: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output (head, less) has gone; there is nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run_verb(verb: str, words: list[str]) -> int:
    module = importlib.import_module(f"crispseg.cli.{verb}")
    parser = argparse.ArgumentParser(
        prog=f"crisp {verb}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    return module.run(parser.parse_intermixed_args(words)) or 0


def _overview() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:<{width}}  {summary}" for verb, summary in VERBS.items())
    return f"""usage: crisp VERB ...

Semantic segmentation of remote sensing imagery with CRISP.

{verbs}

crisp VERB --help says more."""


if __name__ == "__main__":
    sys.exit(main())
