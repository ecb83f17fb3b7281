"""Rooms that can be called: `crispseg.train(...)` though `crispseg.train` is a package.

Importing `crispseg.train.loop` binds the package's name at the front door, whatever function had it before. So the
package itself takes a class with a `__call__`, which hands over to the function of its name, in `crispseg.api` or where
it says. To a type checker the name is that function.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from typing import Any


class _CallableRoom(types.ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._function()(*args, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function())

    def _function(self) -> Any:
        return getattr(importlib.import_module(_HOMES[self.__name__]), self.__name__.rpartition(".")[2])


_HOMES: dict[str, str] = {}  # package -> the module that has its function


def make_callable(name: str, home: str = "crispseg.api") -> None:
    """Let the package `name` be called as the function of the module `home` that shares its last part."""
    _HOMES[name] = home
    sys.modules[name].__class__ = _CallableRoom
