"""Who takes part: `name`, `name:key=value,key=value`, a shell-style pattern, or what `load` opens."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from crispseg import config as configs
from crispseg.bench.inputs import random_images
from crispseg.bench.result import Skipped
from crispseg.bench.settings import DTYPES, Settings
from crispseg.errors import UserError, unknown
from crispseg.models.base import SegmentationModel
from crispseg.models.folder import load
from crispseg.models.registry import create_model, entries, list_models, missing_requirement
from crispseg.models.shipped import is_saved, list_shipped

DEFAULT = ("crisp_nano", "crisp_tiny", "unetformer_r18")


class Spec(NamedTuple):
    label: str  # as it was asked for
    name: str  # registered name, or what `load` opens
    options: Mapping[str, Any]
    folder: bool


def parse(words: Iterable[str]) -> list[Spec]:
    """What the words stand for, in order, each once."""
    words = list(words) or [name for name in DEFAULT if name in entries()]
    found = [spec for word in words for spec in _parse_one(word)]
    return list({spec.label: spec for spec in found}.values())


def split_options(text: str) -> list[str]:
    """Split at the commas that are not within brackets: `a=1,b=[2,3]` has two parts."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _parse_one(word: str) -> list[Spec]:
    if is_saved(word):
        return [Spec(word, word, {}, True)]
    name, colon, text = word.partition(":")
    if not colon and any(letter in name for letter in "*?["):
        names = list_models(name)
        if not names:
            raise UserError(f"no model matches {name!r}; `crisp models` lists all")
        return [Spec(match, match, {}, False) for match in names]
    if name not in entries():
        raise unknown("model", name, [*entries(), *list_shipped()])
    return [Spec(word, name, configs.parse_overrides(split_options(text)) if colon else {}, False)]


def skipped(spec: Spec) -> Skipped | None:
    """Why this model cannot take part on this machine, and what to install; None when it can."""
    if spec.folder:
        return None
    install = missing_requirement(entries()[spec.name])
    return Skipped(spec.label, f"needs {install}") if install else None


def build(spec: Spec, settings: Settings) -> SegmentationModel:
    """The float32 model on its device, in evaluation mode. Fresh weights are the same in every run."""
    if spec.folder:
        model = load(spec.name)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = create_model(spec.name, settings.num_classes, settings.in_channels, **spec.options)
    model = model.to(settings.device, memory_format=settings.memory_format).eval()  # type: ignore[call-overload]
    if not spec.folder:
        settle(model, settings)
    return model


def settle(model: SegmentationModel, settings: Settings) -> None:
    """Move fresh BatchNorms halfway to the statistics of random images.

    At their initial statistics the deep layers see next to nothing of the image: outputs for different images differ by
    less than half precision rounds, and a check of them would tell little. All the way, deep networks with random
    weights amplify rounding until the check fails for honest arithmetic.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    images = random_images(2, model.in_channels, 128, settings, seed=1)
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.5
        norm.train()
    with torch.no_grad():
        model(images)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


def in_precision(model: SegmentationModel, precision: str, settings: Settings) -> SegmentationModel:
    """A copy with its weights cast, or the model itself where it runs from float32 weights."""
    if precision == "fp32" or settings.half == "autocast":
        return model
    return copy.deepcopy(model).to(DTYPES[precision])
