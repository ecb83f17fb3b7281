"""A model's options are given flat and belong to one of its configs; this sorts them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from crispseg.errors import unknown


def split_options(options: Mapping[str, Any], *config_classes: type) -> list[dict[str, Any]]:
    """One dict per config class, holding the options that are its fields."""
    fields = [{f.name: f for f in dataclasses.fields(cls)} for cls in config_classes]
    known = [name for names in fields for name in names]
    for name in options:
        if name not in known:
            raise unknown("model option", name, known)
    return [{name: options[name] for name in names if name in options} for names in fields]
