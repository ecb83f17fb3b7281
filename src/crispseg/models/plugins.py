"""Modules of the user's that register networks: named by CRISPSEG_MODELS, or by installed packages' entry points.

What a model folder says is never imported: only the user's own environment names code.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from crispseg.errors import UserError
from crispseg.reading import reason

VARIABLE = "CRISPSEG_MODELS"  # modules or .py files, with commas between
GROUP = "crispseg.models"


@cache
def import_plugins(named: str | None = None) -> None:
    """Import each once; `named` is the variable's value."""
    for word in filter(None, (part.strip() for part in (named or "").split(","))):
        with _told(f"{VARIABLE} names {word}, which"):
            _import(word)
    for point in importlib.metadata.entry_points(group=GROUP):
        package = point.dist.name if point.dist else point.value
        with _told(f"{package} declares {point.value} as {GROUP}, which"):
            point.load()


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # whatever the user's module raises
        raise UserError(f"{what} cannot be imported: {reason(error)}") from error


def any_named() -> bool:
    """Whether there may be networks of the user's own."""
    return bool(os.environ.get(VARIABLE) or importlib.metadata.entry_points(group=GROUP))


def import_named() -> None:
    import_plugins(os.environ.get(VARIABLE))


def _import(word: str) -> None:
    if not word.endswith(".py"):
        importlib.import_module(word)
        return
    path = Path(word)
    if not path.is_file():
        raise UserError(f"{VARIABLE} names {word}, but there is no such file")
    name = f"crispseg_plugin_{path.stem}"
    if any(_is_of(path, there) for there in ("__main__", name)):
        return  # it asks for its own models: it is the program, or is being imported
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _is_of(path: Path, module: str) -> bool:
    """Whether a module that is there already was made from this file."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and Path(file).is_file() and path.samefile(file)
