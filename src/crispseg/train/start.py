"""What a training starts from: a pretrained backbone, a saved model, a checkpoint file, or random weights.

A saved model need not have our classes and bands. What belongs to a class is taken over by the class's name, and the
first convolution of a VSSD is adapted to our bands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from crispseg.data.folder import Folder
from crispseg.errors import UserError, nearest
from crispseg.models.base import SegmentationModel
from crispseg.models.folder import load as load_model
from crispseg.models.one_class_more import shapes_with_one_class_more
from crispseg.models.own_head import is_own_head
from crispseg.models.pretrained import (
    PICTURE_BANDS,
    STEM,
    adapt_stem,
    is_pretrained,
    matching_backbone,
    matching_model,
    start_backbone,
)
from crispseg.models.registry import create_model
from crispseg.models.shipped import is_saved, list_backbones_with_weights, list_shipped
from crispseg.models.vssd import VSSD
from crispseg.models.vssd_checkpoint import start_from_checkpoint

SCRATCH = "none"  # as model.weights: a start from random weights
# Per band of 8 bits, red, green, blue: what public checkpoints were trained with.
IMAGENET_MEAN, IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
_ON_VSSD = ("crisp_", "vssd_")
_NAMED = 6  # classes that a line still names one by one


def default_weights(name: str, options: Mapping[str, Any]) -> str:
    """What comes along for a model: the same network trained whole, else its pretrained backbone, else `none`."""
    return matching_model(name, options) or default_backbone(name, options)


def default_backbone(name: str, options: Mapping[str, Any]) -> str:
    """The pretrained backbone that comes along for a model, or `none`: for other networks, sizes and mixers."""
    if not list_backbones_with_weights() or not (name.startswith(_ON_VSSD) or is_own_head(name)):
        return SCRATCH
    try:
        with torch.device("meta"):
            backbone = getattr(create_model(name, **options), "backbone", None)
    except Exception:  # a model that cannot be made: its run will say why
        return SCRATCH
    return matching_backbone(backbone) or SCRATCH if isinstance(backbone, VSSD) else SCRATCH


def start_from(model: SegmentationModel, path: Path, folder: Folder | None = None) -> None:
    """Take over a pretrained backbone, a saved model's weights as far as they fit, or a public VSSD checkpoint's."""
    backbone = getattr(model, "backbone", None)
    if is_pretrained(path):
        if not isinstance(backbone, VSSD):
            raise UserError(f"model.weights {path} is a VSSD backbone, which {model.name} does not have")
        model.origin = start_backbone(backbone, path, model.info.bands)
        return
    if is_saved(path):
        model.origin = _start_from_folder(model, path)
        return
    if not path.exists():
        known = [*list_shipped(), *list_backbones_with_weights()]
        raise UserError(f"there is no weight file {path}{nearest(str(path), known)}")
    if path.is_file() and is_peer(model):
        model.origin = _start_from_authors(model, path)
        _normalise_as_imagenet(model, folder, PICTURE_BANDS)  # the first convolution is taken as it is
        return
    if not isinstance(backbone, VSSD):
        raise UserError(
            f"model.weights {path} is a checkpoint file, which only VSSD backbones and the rivals take; give a model "
            "folder"
        )
    model.origin = start_from_checkpoint(backbone, path, model.info.bands)
    _normalise_as_imagenet(model, folder, model.info.bands)


def _normalise_as_imagenet(model: SegmentationModel, folder: Folder | None, bands: Sequence[str]) -> None:
    """Give a model of 8-bit images the mean and spread that public weights were trained with, for bands of these names
    as `adapted_stem` gives them weights: a band of another name has the mean of red's, green's and blue's."""
    if folder is None or not _in_8_bits(folder):
        return
    count = model.in_channels
    unnamed = PICTURE_BANDS if count == len(PICTURE_BANDS) else ("",) * count
    names = tuple(bands) if len(bands) == count else unnamed
    mean, std = (_by_band(values, names) for values in (IMAGENET_MEAN, IMAGENET_STD))
    model.info = dataclasses.replace(model.info, mean=mean, std=std)
    model.origin += ", with ImageNet's mean and std"


def _by_band(values: Sequence[float], names: Sequence[str]) -> tuple[float, ...]:
    """Numbers of red, green and blue as numbers of bands of these names."""
    known, middle = dict(zip(PICTURE_BANDS, values, strict=True)), sum(values) / len(values)
    return tuple(known.get(name, middle) for name in names)


def is_peer(model: SegmentationModel) -> bool:
    from crispseg.peers.base import Peer

    return isinstance(model, Peer)


def _start_from_authors(model: SegmentationModel, path: Path) -> str:
    """A checkpoint of the network's authors, or only its encoder's."""
    from crispseg.peers.authors import load_authors_checkpoint

    return f"the authors' checkpoint {path} ({load_authors_checkpoint(model, path, partial=True)})"


def _in_8_bits(folder: Folder) -> bool:
    return folder.read_image(folder.records("train")[0]).dtype == np.uint8


def _start_from_folder(model: SegmentationModel, path: Path) -> str:
    """Says in a line what it started from and what of it had to be changed or left out."""
    other = load_model(path)
    given = dict(other.state_dict())
    adapted = _adapt_bands(given, model, other, path)
    own, axes, pairs = model.state_dict(), _class_axes(model), _same_classes(model, other)
    same = _all_the_same(pairs, model, other)
    taken: dict[str, Tensor] = {}
    for name in own.keys() & given.keys():
        axis = axes.get(name)
        if axis is not None and axis.fits(own[name], given[name], model.num_classes, other.num_classes):
            taken[name] = axis.with_rows(own[name], given[name], pairs)
        elif own[name].shape == given[name].shape and (same or name not in axes):
            taken[name] = given[name]
    if len(taken) < len(own) / 2:
        raise UserError(f"the model in {path} is a {other.name} and does not fit {model.name} with these options")
    model.load_state_dict(taken, strict=False)
    classes = _say_classes(pairs if taken.keys() & axes.keys() else [], model, other) if axes else ""
    left = len(own.keys() - taken.keys())
    facts = [classes, adapted, f"{left} of our tensors fresh" if left else ""]
    said = "; ".join(fact for fact in facts if fact)
    return f"{path} ({said})" if said else str(path)


def _adapt_bands(given: dict[str, Tensor], model: SegmentationModel, other: SegmentationModel, path: Path) -> str:
    """Fit the first convolution to our bands, where it is known what it has learnt to look at."""
    both = (getattr(one, "backbone", None) for one in (model, other))
    pictures = other.in_channels == len(PICTURE_BANDS) and other.info.bands in ((), PICTURE_BANDS)
    if pictures and all(isinstance(backbone, VSSD) for backbone in both):
        return adapt_stem(given, f"backbone.{STEM}", model.in_channels, model.info.bands)
    if other.in_channels != model.in_channels:
        raise UserError(
            f"the model in {path} takes {other.in_channels} bands, but the images have {model.in_channels}; "
            "start from another model or from scratch"
        )
    return ""


Pairs = Sequence[tuple[int, int]]  # of a class's numbers, ours and theirs


def _same_classes(model: SegmentationModel, other: SegmentationModel) -> Pairs:
    """The classes of one name in both models; where either names none, those of one number if both have as many."""
    ours, theirs = (one.info.classes if len(one.info.classes) == one.num_classes else () for one in (model, other))
    if ours and theirs:
        return [(number, theirs.index(name)) for number, name in enumerate(ours) if name in theirs]
    return [(number, number) for number in range(model.num_classes)] if model.num_classes == other.num_classes else []


def _all_the_same(pairs: Pairs, model: SegmentationModel, other: SegmentationModel) -> bool:
    return model.num_classes == other.num_classes == len(pairs) and all(ours == theirs for ours, theirs in pairs)


def _say_classes(pairs: Pairs, model: SegmentationModel, other: SegmentationModel) -> str:
    if _all_the_same(pairs, model, other):
        return ""
    if not pairs:
        return "all classes new"
    names, new = [model.info.classes[ours] for ours, _ in pairs], model.num_classes - len(pairs)
    word = "class" if len(names) == 1 else "classes"
    kept = f"{word} {', '.join(names)}" if len(names) <= _NAMED else f"{len(names)} {word}"
    return f"{kept} as there" + (f", {new} new" if new else "")


class _ClassAxis(NamedTuple):
    """The dimension of a tensor that has `rows` for each class, one class after the other."""

    dim: int
    rows: int

    def fits(self, own: Tensor, given: Tensor, classes: int, given_classes: int) -> bool:
        """Whether the tensors differ in nothing but the number of classes."""
        expected = list(own.shape)
        expected[self.dim] = self.rows * given_classes
        return own.shape[self.dim] == self.rows * classes and list(given.shape) == expected

    def with_rows(self, own: Tensor, given: Tensor, pairs: Pairs) -> Tensor:
        """Our tensor with the given one's values for these classes."""
        made = own.clone()
        here, there = (tensor.unflatten(self.dim, (-1, self.rows)) for tensor in (made, given))
        for ours, theirs in pairs:
            here.select(self.dim, ours).copy_(there.select(self.dim, theirs))
        return made


def _class_axes(model: SegmentationModel) -> dict[str, _ClassAxis | None]:
    """The tensors that depend on the number of classes, found by making the network with one class more; None where it
    is not one dimension that grows, so that nobody knows whose values are whose."""
    axes: dict[str, _ClassAxis | None] = {}
    larger = shapes_with_one_class_more(model)
    for name, tensor in model.state_dict().items():
        shape = larger.get(name, tensor.shape)
        if shape != tensor.shape:
            grown = [
                (dim, more - now)
                for dim, (now, more) in enumerate(zip(tensor.shape, shape, strict=False))
                if more != now
            ]
            one = len(grown) == 1 and len(shape) == tensor.ndim
            axes[name] = _ClassAxis(*grown[0]) if one else None
    return axes
