"""Which trainings are the same: the config in full, without what names a place or a machine."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from crispseg import config as configs
from crispseg.models.whole_options import whole_options
from crispseg.train.config import MACHINE_KEYS, ModelConfig, TrainConfig
from crispseg.train.start import SCRATCH


def describe(config: TrainConfig) -> dict[str, Any]:
    """All that decides what a run gives. Two ways of asking for the same network are described alike. No start is one
    from random weights: a table's plan names any other (see `start`)."""
    values: dict[str, Any] = configs.to_dict(config)
    for key in ("out", *(key for key in MACHINE_KEYS if not key.startswith("data"))):
        del values[key]
    del values["data"]["cache"]
    if config.data.protocol is not None:  # it names the images, wherever they lie
        del values["data"]["path"]
    else:
        values["data"]["path"] = os.path.normpath(config.data.path)
    start = config.model.weights
    values["model"]["weights"] = None if start == SCRATCH else start
    values["model"]["options"] = whole_options(str(config.model.name), values["model"]["options"])
    return values


def default_description(name: str | None) -> dict[str, Any]:
    """Of a run that says nothing but the model's name."""
    return describe(TrainConfig(model=ModelConfig(name=name)))


def fingerprint(description: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:10]


def same(earlier: Mapping[str, Any], now: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
    """Whether an earlier description is of this run. A key that did not exist then must have its default now."""
    if not set(earlier) <= set(now):
        return False
    for key, value in now.items():
        default = defaults.get(key)
        if isinstance(value, Mapping) and isinstance(earlier.get(key), Mapping):
            if not same(earlier[key], value, default if isinstance(default, Mapping) else {}):
                return False
        elif value != (before := earlier.get(key, default)) and not (key == "path" and _one_place(value, before)):
            return False
    return True


def _one_place(path: object, other: object) -> bool:
    """A folder may be named from here or in full."""
    return isinstance(path, str) and isinstance(other, str) and os.path.abspath(path) == os.path.abspath(other)
