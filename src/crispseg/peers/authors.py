"""The authors' own checkpoints, renamed and placed into our networks tensor by tensor."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from crispseg.errors import UserError
from crispseg.models.one_class_more import shapes_with_one_class_more
from crispseg.models.weights import read_weights, tensors_in
from crispseg.peers.base import Peer

PREFIXES = ("module.", "net.", "model.")  # DataParallel, GeoSeg's trainer, other trainers
CONSTANT = "relative_position_index"  # follows from the window: compared, not copied
COUNTER = "num_batches_tracked"  # some files lack it; nothing depends on it
NAMED = 5  # how many names an error message spells out


@dataclasses.dataclass(frozen=True)
class Placement:
    """What became of a checkpoint's tensors, by the authors' names, and what of ours stayed as it was, by our names."""

    placed: tuple[str, ...]
    left_over: tuple[str, ...]
    missing: tuple[str, ...]
    classes: int | None = None  # the checkpoint's, if it is for another number of them: its classifier was left out

    def __str__(self) -> str:
        facts = [f"{len(self.placed)} tensors"]
        facts += [f"all classes new, as the file has {self.classes}"] if self.classes else []
        facts += [f"{len(self.missing)} of ours stay fresh"] if self.missing else []
        facts += [f"{len(self.left_over)} have no place here"] if self.left_over else []
        return "; ".join(facts)


def load_authors_checkpoint(
    model: nn.Module, source: str | os.PathLike[str] | Mapping[str, Any], partial: bool = False
) -> Placement:
    """Load a checkpoint of the network's authors: a .pth, .pt, .ckpt or .safetensors file, or its state dict.

    A tensor of another shape, or one of ours that the checkpoint lacks, is an error and leaves the model untouched.
    With `partial` neither a missing tensor nor another number of classes is: what belongs to the classes stays fresh.

    Args:
        model: One of the rivals, such as `create_model("unetformer_r18")`.
        source: The file, or the mapping of names to tensors that it would hold.
        partial: Load what fits: a pretrained backbone alone, or all but the classifier of a network for other classes.

    Returns:
        What was `placed`, what was `left_over` in the file, what was `missing` from it, and the file's number of
            `classes` where it is another.
    """
    if not isinstance(model, Peer):
        raise UserError(
            f"{type(model).__name__} has no authors' checkpoints to load; only the peers do, such as unetformer_r18"
        )
    where = "the state dict" if isinstance(source, Mapping) else str(source)
    content = dict(source) if isinstance(source, Mapping) else read_weights(source)
    ours, origin, left_over = _rename(model, tensors_in(content))
    if not ours:
        raise UserError(
            f"nothing in {where} belongs to {_name(model)}: {_some(left_over) or 'it holds no tensors'}; "
            "is it a checkpoint of another network?"
        )
    classes = _other_classes(model, ours)
    if classes is not None and partial:
        for name in _class_tensors(model):
            if name in ours:
                left_over.append(origin[name])
                del ours[name]
    _check(model, ours, origin, where, classes)
    state = model.state_dict()
    missing = tuple(name for name in state if name not in ours and not name.endswith(COUNTER))
    if missing and not partial:
        raise UserError(
            f"{where} lacks {len(missing)} of {_name(model)}'s tensors: {_some(missing)}; "
            "give partial=True to load what there is"
        )
    model.load_state_dict({name: tensor for name, tensor in ours.items() if name in state}, strict=False)
    return Placement(tuple(origin[name] for name in ours), tuple(left_over), missing, classes)


def our_name(model: Peer, authors_name: str) -> str:
    """Our name for a parameter or buffer of the authors' module."""
    name = authors_name
    while name.startswith(PREFIXES):
        name = name.partition(".")[2]
    for pattern, replacement in model.authors_names:
        name = re.sub(pattern, replacement, name)
    return name


def _rename(model: Peer, state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str], list[str]]:
    """The tensors that have a place, by our names; the authors' name of each; the names of the others."""
    places = _places(model)
    ours: dict[str, Tensor] = {}
    origin: dict[str, str] = {}
    left_over: list[str] = []
    for key, value in state.items():
        name = our_name(model, key)
        if name not in places:
            left_over.append(key)
        elif name in ours:
            raise UserError(f"the checkpoint holds {name} twice, as {origin[name]} and as {key}")
        else:
            fits = value.numel() == places[name].numel()  # if not, it is reported in its own shape
            ours[name], origin[name] = model.from_authors(name, value) if fits else value, key
    return ours, origin, left_over


def _places(model: nn.Module) -> dict[str, Tensor]:
    constants = {name: buffer for name, buffer in model.named_buffers() if name.endswith(CONSTANT)}
    return {**model.state_dict(), **constants}


def _class_tensors(model: Peer) -> dict[str, torch.Size]:
    """The tensors that depend on the number of classes, with their shapes for one class more."""
    larger, own = shapes_with_one_class_more(model), model.state_dict()
    return {name: shape for name, shape in larger.items() if name in own and own[name].shape != shape}


def _other_classes(model: Peer, ours: Mapping[str, Tensor]) -> int | None:
    """How many classes the checkpoint is for, if that is another number than the model's."""
    own = model.state_dict()
    for name, larger in _class_tensors(model).items():
        given = ours.get(name, own[name]).shape
        for now, more, there in zip(own[name].shape, larger, given, strict=False):
            further, rest = divmod(there - now, more - now) if more != now else (0, 0)
            if further and not rest and model.num_classes + further > 0:
                return model.num_classes + further
    return None


def _check(model: Peer, ours: Mapping[str, Tensor], origin: Mapping[str, str], where: str, classes: int | None) -> None:
    places = _places(model)
    wrong = [
        f"{origin[name]} is {_shape(tensor)} there and {_shape(places[name])} here"
        for name, tensor in ours.items()
        if tensor.shape != places[name].shape
    ]
    if wrong:
        cause = f"it is for {classes} classes and this model for {model.num_classes}: " if classes else ""
        raise UserError(
            f"{where} does not fit {_name(model)}: {cause}{_some(wrong)}; "
            "create the model with the checkpoint's number of classes and bands"
        )
    for name, tensor in ours.items():
        if name.endswith(CONSTANT) and not torch.equal(tensor.cpu(), places[name].cpu()):
            raise UserError(f"{origin[name]} in {where} orders its window's pixels in a way we do not know")


def _name(model: Peer) -> str:
    return model.name or type(model).__name__


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a scalar"


def _some(names: Sequence[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
