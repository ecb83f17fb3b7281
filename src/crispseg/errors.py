"""The one exception for things the user can mend; the command prints it as a sentence, without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST_NAME = 200


class UserError(Exception):
    """Something that the user can mend: its text says what was wrong, where, and what to do.

    Every function of `crispseg` raises it for a mistake in what it was given; the commands print it without a
    traceback and end with exit status 1.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as `; did you mean 'tree'?`, or an empty string when nothing is close."""
    if len(name) > _LONGEST_NAME:  # comparing takes time that grows with the square of the length
        return ""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not one of `known`, with the nearest one suggested."""
    known = list(known)
    name = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]} ..."
    hint = nearest(name, known) or f"; known: {', '.join(known)}"
    return UserError(f"unknown {kind} {name!r}{hint}")
