"""A model's options with their defaults: two ways of asking for one network come out alike."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

import torch

from crispseg import config as configs
from crispseg.models.dco import dco_config
from crispseg.models.omp import OMPHead
from crispseg.models.registry import create_model
from crispseg.models.vssd import VSSD


def whole_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options (as plain values) with all defaults, where the model's parts know them."""
    whole: dict[str, Any] = json.loads(_completed(name, json.dumps(configs.to_dict(options), sort_keys=True)))
    return whole


@functools.cache
def _completed(name: str, given: str) -> str:
    """As JSON, which can be cached by."""
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
