"""How every verb speaks: its result to standard output, everything else to standard error.

`main` gives every verb the words --json and --quiet; a verb's `run(args)` then says all it has to say through one
Printer:

    out = Printer.of(args)
    out.say("reading 12 scenes")                 # progress and remarks; --quiet leaves them out
    with Bar(silent=out.quiet) as bar: ...       # a bar is progress too
    out.warn("no coordinate reference system")   # what the user must know, --quiet or not
    out.result({"images": 12}, "12 images")      # once, at the end

`result` takes plain values (a dict or a list; paths and dataclasses are understood) and what a person should see
instead: text, or anything rich draws, such as a Table. With --json the values are printed as one JSON document and
nothing else reaches standard output. The return value of `run` is the exit status (see EXIT_CODES); a mistake of the
user raises UserError, which `main` prints.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
from collections.abc import Mapping
from typing import Any

EXIT_CODES = {
    0: "done",
    1: "the user can mend it: the message says how; or the result is a bad one (problems found, wrong output)",
    2: "the words of the command are wrong",
    130: "stopped by Ctrl-C",
    143: "stopped by SIGTERM",
}
_WIDTH_WITHOUT_TERMINAL = 240  # a table in a file is not folded to the width of a terminal that is not there


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is printed")
    group.add_argument("--json", action="store_true", help="print the result as one JSON document")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress and no remarks, only the result")


@dataclasses.dataclass(frozen=True)
class Printer:
    """Standard output and standard error as the words --json and --quiet want them."""

    json: bool = False
    quiet: bool = False

    @classmethod
    def of(cls, args: argparse.Namespace) -> Printer:
        return cls(getattr(args, "json", False), getattr(args, "quiet", False))

    def say(self, text: str) -> None:
        """Progress or a remark."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        """Something the user must know; printed in any case."""
        print(text, file=sys.stderr, flush=True)

    def result(self, values: Any, *shown: Any) -> None:
        """What the verb was asked for: `values` for programs, `shown` (texts or things rich draws) for people."""
        if self.json:
            print(json.dumps(plain(values), indent=2, ensure_ascii=False), flush=True)
            return
        for item in shown:
            if isinstance(item, str):
                print(item)
            else:
                self._draw(item)
        sys.stdout.flush()

    def _draw(self, item: Any) -> None:
        from rich.console import Console

        Console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL).print(item)


def plain(value: Any) -> Any:
    """Plain values for JSON, which has neither paths nor NaN nor infinity (they become null)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "_asdict"):  # a named tuple
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item") and not isinstance(value, str):  # a number of numpy or torch
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
