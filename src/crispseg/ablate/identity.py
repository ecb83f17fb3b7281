"""Which trainings are the same: the config in full, without what names a place or a machine."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch

from crispseg import config as configs
from crispseg.models.dco import dco_config
from crispseg.models.omp import OMPHead
from crispseg.models.registry import create_model
from crispseg.models.vssd import VSSD
from crispseg.train.config import MACHINE_KEYS, ModelConfig, TrainConfig
from crispseg.train.start import SCRATCH, default_weights


def describe(config: TrainConfig) -> dict[str, Any]:
    """All that decides what a run gives. Two ways of asking for the same network are described alike."""
    values: dict[str, Any] = configs.to_dict(config)
    for key in ("out", *(key for key in MACHINE_KEYS if not key.startswith("data"))):
        del values[key]
    del values["data"]["cache"]
    if config.data.protocol is not None:  # it names the images, wherever they lie
        del values["data"]["path"]
    start = config.model.weights or default_weights(str(config.model.name), config.model.options)
    values["model"]["weights"] = None if start == SCRATCH else start
    options = json.dumps(values["model"]["options"], sort_keys=True)
    values["model"]["options"] = json.loads(_full_options(str(config.model.name), options))
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
        elif value != earlier.get(key, default):
            return False
    return True


@functools.cache
def _full_options(name: str, given: str) -> str:
    """A model's options (JSON, so that they can be cached by) with their defaults, where its parts know them."""
    options: dict[str, Any] = json.loads(given)
    try:
        with torch.device("meta"):
            network = create_model(name, **options)
    except Exception:  # a model that cannot be made here: its run will say why
        return given
    for part in network.children():
        if isinstance(part, VSSD):
            calibration = dco_config(part.config.dco)
            full = dataclasses.replace(part.config, dco=calibration if calibration.enabled else False)
            options |= configs.to_dict(full)
        elif isinstance(part, OMPHead):
            options |= configs.to_dict(part.config)
    return json.dumps(options)
