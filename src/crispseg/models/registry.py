"""Names of models and backbones, and how each is built."""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from crispseg.config import check_arguments, shown
from crispseg.errors import UserError, unknown
from crispseg.models.base import ModelInfo, SegmentationModel
from crispseg.models.plugins import import_named

Builder = Callable[..., SegmentationModel]


class Entry(NamedTuple):
    build: Builder  # build(num_classes=, in_channels=, **options)
    summary: str
    requires: str  # a package that must be importable, or ""
    extra: str  # the pip extra that brings it, or ""
    module: str = ""  # of the user's own function that builds it; empty: ours


_ENTRIES: dict[str, Entry] = {}
_FAMILIES = ("crispseg.models.crisp", "crispseg.models.upernet", "crispseg.peers")


def register(name: str, build: Builder, summary: str, requires: str = "", extra: str = "") -> None:
    if name in _ENTRIES:
        raise ValueError(f"model {name!r} is registered twice")
    _ENTRIES[name] = Entry(build, summary, requires, extra)


def register_own(name: str, build: Builder, made_by: Callable[..., Any], summary: str) -> None:
    """A model that its user's function `made_by` makes. The same module may register it anew, as when a notebook's cell
    is run again; the names of others stay theirs."""
    if not callable(made_by):
        raise UserError(f"model {name!r} is registered by a function that makes it, not {shown(made_by)}")
    _import_families()
    module = getattr(made_by, "__module__", type(made_by).__module__)
    there = _ENTRIES.get(name)
    if there is not None and there.module != module:
        raise UserError(f"there is a model {name!r} of {there.module or 'crispseg'} already; choose another name")
    _ENTRIES[name] = Entry(build, summary, "", "", module)


def entries() -> dict[str, Entry]:
    """All registered models, in order of registration."""
    _import_families()
    import_named()
    return dict(_ENTRIES)


def _import_families() -> None:
    for module in _FAMILIES:
        importlib.import_module(module)


def list_models(pattern: str = "*") -> list[str]:
    """The names that `create_model` takes, in the order of `crisp models`.

    Args:
        pattern: Shell-style: `list_models("crisp*")`.
    """
    check_arguments(list_models, locals())
    return [name for name in entries() if fnmatch.fnmatchcase(name, pattern)]


def missing_requirement(entry: Entry) -> str:
    """What to install before this model can be created; empty when nothing is missing."""
    if not entry.requires or importlib.util.find_spec(entry.requires) is not None:
        return ""
    return f"pip install 'crispseg[{entry.extra}]'"


def create_model(
    name: str,
    num_classes: int = 6,
    in_channels: int = 3,
    *,
    pretrained: bool | str | os.PathLike[str] = False,
    **options: Any,
) -> SegmentationModel:
    """Build a model by its name, with fresh weights.

        model = crispseg.create_model("crisp_tiny", num_classes=6, in_channels=4, prototypes=5)

    Args:
        name: One of `list_models()`.
        num_classes: How many classes it tells apart.
        in_channels: How many bands its images have.
        pretrained: True starts the backbone from the weights that come with crispseg; an error where there are none of
            the same function (another `fusion`, say). Else a backbone's name, its folder, or a run of `crisp pretrain`.
        options: What else the model can be told: for CRISP the fields of its backbone (`VSSDConfig`: `fusion`, `dco`,
            `last_stage` ...) and of its head (`OMPConfig`: `prototypes`, `neck`, `dim` ...).

    Returns:
        A module that maps images (B, bands, H, W) of any size, normalised by the data's mean and standard deviation,
            to logits (B, classes, H, W) in evaluation mode.
    """
    check_arguments(create_model, locals())
    num_classes, in_channels = int(num_classes), int(in_channels)  # numpy's, too
    entry = entries().get(name)
    if entry is None:
        raise unknown("model", name, _ENTRIES)
    if num_classes < 1:
        raise UserError(f"a model needs at least one class, not {num_classes}")
    if in_channels < 1:
        raise UserError(f"a model needs at least one band, not {in_channels}")
    install = missing_requirement(entry)
    if install:
        raise UserError(f"model {name!r} needs {entry.requires}: {install}")
    model = entry.build(num_classes=num_classes, in_channels=in_channels, **options)
    model.name, model.options = name, dict(options)
    model.num_classes, model.in_channels = num_classes, in_channels
    model.info = ModelInfo()
    if pretrained:
        _start_pretrained(model, pretrained)
    return model


def _start_pretrained(model: SegmentationModel, pretrained: bool | str | os.PathLike[str]) -> None:
    from crispseg.models.pretrained import start_as_asked
    from crispseg.models.vssd import VSSD

    backbone = getattr(model, "backbone", None)
    if not isinstance(backbone, VSSD):
        raise UserError(f"{model.name} has no VSSD backbone, so it takes no pretrained weights; crisp models do")
    model.origin = start_as_asked(backbone, pretrained, model.name)
