"""A model's options are given flat and belong to one of its configs; this sorts them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from crispseg.errors import UserError, unknown

_LARGEST = 1 << 16


def split_options(options: Mapping[str, Any], *config_classes: type) -> list[dict[str, Any]]:
    """One dict per config class, holding the options that are its fields."""
    fields = [{f.name: f for f in dataclasses.fields(cls)} for cls in config_classes]
    known = [name for names in fields for name in names]
    for name in options:
        if name not in known:
            raise unknown("model option", name, known)
    return [{name: options[name] for name in names if name in options} for names in fields]


def check_call(name: str, make: Callable[..., Any], *values: Any, **options: Any) -> None:
    """Refuse options that the function a user registered as `name` does not take; `values` stand for what it is given
    by position."""
    try:
        signature = inspect.signature(make)
    except ValueError:  # a builtin, which does not say
        return
    try:
        signature.bind(*values, **options)
    except TypeError as error:
        raise UserError(f"what is registered as {name!r} takes {signature}: {error}") from error


def check_sizes(**sizes: int | tuple[int, ...] | None) -> None:
    """Refuse counts and widths that no network has; None stands for a default."""
    for name, value in sizes.items():
        for size in value if isinstance(value, tuple) else (value,):
            if size is not None and not 1 <= size <= _LARGEST:
                raise UserError(f"{name} must be from 1 to {_LARGEST}, not {value}")
