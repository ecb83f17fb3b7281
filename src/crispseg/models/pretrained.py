"""Starting a model from a pretrained backbone: one that comes with crispseg, or what `crisp pretrain` left.

A backbone that is asked for by name or folder is taken wherever its weights fit. One that nobody named (`crisp train`
without model.weights, `pretrained=True`) is taken only where it computes the same function: see `matching_backbone`.

Backbones see red, green and blue. For other bands the first convolution is adapted: a band of one of these names takes
that band's weights, any other the mean of the three, and all are scaled by three over the number of bands.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from crispseg.errors import UserError, nearest
from crispseg.models import shipped
from crispseg.models.backbone_folder import (
    SavedBackbone,
    is_backbone_folder,
    read_backbone,
    whole_settings,
)
from crispseg.models.vssd import VSSD, VSSDConfig, backbone_config, variant_of
from crispseg.models.whole_options import whole_options

PICTURE_BANDS = ("red", "green", "blue")
STEM = "patch_embed.conv1.conv.weight"
_MAY_BE_FRESH = (".dco.", ".selection.", "num_batches_tracked")  # small gates, which a backbone may have been without
_NOT_OF_THE_FUNCTION = ("drop_path", "checkpointing")


def is_pretrained(word: str | os.PathLike[str]) -> bool:
    """Whether a word means a pretrained backbone: the name of one that comes along, its folder, or the run that made
    it."""
    by_name = os.fspath(word) in shipped.list_backbones_with_weights()
    return by_name or is_backbone_folder(word) or shipped.is_pretraining(word)


def find_pretrained(word: str | os.PathLike[str]) -> Path:
    """The folder of a pretrained backbone, by its path, its run or its name; what lies at the path wins."""
    path, name, known = Path(word), os.fspath(word), shipped.list_backbones_with_weights()
    if is_backbone_folder(path):
        return path
    if shipped.is_pretraining(path):
        return _backbone_of_run(path)
    if name in known:
        return shipped.BACKBONES / name
    if shipped.is_saved(name):
        raise UserError(f"{name} holds no backbone: give what `crisp pretrain` left, or a name ({_there(known)})")
    hint = nearest(name, known) or f": {_there(known)}"
    raise UserError(f"there is no pretrained backbone {name}, neither as a folder nor with crispseg{hint}")


def _there(known: Sequence[str]) -> str:
    return f"there are {', '.join(known)}" if known else "there are none"


def _backbone_of_run(run: Path) -> Path:
    folder = run / shipped.PRETRAINED
    if not is_backbone_folder(folder):
        raise UserError(
            f"the pretraining in {run} is not finished: it has no {shipped.PRETRAINED}/ yet; go on with "
            f"`crisp pretrain --resume {shlex.quote(str(run))}`"
        )
    return folder


def matching_backbone(backbone: VSSD) -> str:
    """The name of the shipped backbone that computes the same function as this one, or an empty string."""
    for name in shipped.list_backbones_with_weights():
        card = shipped.read_backbone_card(name)
        if _settings(backbone_config(card["name"], **card["options"])) == _settings(backbone.config):
            return name
    return ""


def matching_model(name: str, options: Mapping[str, Any]) -> str:
    """The name of the shipped model that is this network, or an empty string."""
    for one in shipped.list_shipped():
        card = shipped.read_card(one)
        if card["name"] == name and _head_and_backbone(name, card["options"]) == _head_and_backbone(name, options):
            return one
    return ""


def start_as_asked(backbone: VSSD, pretrained: bool | str | os.PathLike[str], called: str) -> str:
    """What `pretrained` of `create_model` and `create_backbone` means: True is the backbone that comes along and
    computes the same function, anything else is a backbone's name or folder. `called` is for messages."""
    word = _same_function(backbone, called) if isinstance(pretrained, bool) else pretrained
    return start_backbone(backbone, word)


def _same_function(backbone: VSSD, called: str) -> str:
    found, known = matching_backbone(backbone), shipped.list_backbones_with_weights()
    if found:
        return found
    near = variant_of(backbone.config)
    if near not in known:
        raise UserError(f"no pretrained backbone of the size of {called} comes with crispseg: {_there(known)}")
    other = _other_function(backbone, read_backbone(shipped.BACKBONES / near))
    raise UserError(
        f"{called} with these options is another function than the pretrained {near}: {other}; leave out pretrained "
        f'for random weights, or give pretrained="{near}" to start from its weights all the same'
    )


def start_backbone(backbone: VSSD, word: str | os.PathLike[str], bands: Sequence[str] = ()) -> str:
    """Give a backbone pretrained weights; says in a sentence what it started from and what had to be adapted."""
    folder = find_pretrained(word)
    saved = read_backbone(folder)
    weights = dict(saved.weights)
    adapted = adapt_stem(weights, STEM, backbone.in_channels, bands)
    fresh = _check_fit(backbone, weights, saved, folder)
    backbone.load_state_dict(weights, strict=False)
    own = f"the pretrained backbone {saved.name}" if folder.parent == shipped.BACKBONES else f"the backbone in {folder}"
    facts = [f"trained on {saved.info.training_data}" if saved.info.training_data else "", adapted]
    facts += [f"{len(fresh)} gates fresh" if fresh else "", _other_function(backbone, saved)]
    said = "; ".join(fact for fact in facts if fact)
    backbone.origin = f"{own} ({said})" if said else own
    return backbone.origin


def adapted_stem(weight: Tensor, bands: Sequence[str], count: int) -> Tensor:
    """(out, 3, k, k) for red, green, blue -> (out, count, k, k) for bands of these names (or of none)."""
    if count == weight.shape[1] and (not bands or tuple(bands) == PICTURE_BANDS):
        return weight
    names = tuple(bands) if len(bands) == count else ("",) * count
    columns = [weight[:, PICTURE_BANDS.index(n)] if n in PICTURE_BANDS else weight.mean(1) for n in names]
    scale = weight.shape[1] / count
    stacked: Tensor = weight.new_zeros(weight.shape[0], count, *weight.shape[2:])
    for band, column in enumerate(columns):
        stacked[:, band] = column * scale
    return stacked


def adapt_stem(weights: dict[str, Tensor], stem: str, count: int, bands: Sequence[str]) -> str:
    """Make the first convolution among these weights, if it is one for red, green and blue, one for these bands; says
    so if that changes it."""
    given = weights.get(stem)
    if given is None or given.shape[1] != len(PICTURE_BANDS):
        return ""
    weights[stem] = adapted_stem(given, bands, count)
    if weights[stem] is given:
        return ""
    ours = ", ".join(bands) or ("one band" if count == 1 else f"{count} bands")
    return f"first convolution adapted from red, green, blue to {ours}"


def _check_fit(backbone: VSSD, weights: dict[str, Tensor], saved: SavedBackbone, folder: Path) -> list[str]:
    """The names that stay fresh; anything but gates must be there and fit."""
    ours = backbone.state_dict()
    fresh = [n for n in ours if n not in weights]
    for name in [n for n in weights if n not in ours and any(part in n for part in _MAY_BE_FRESH)]:
        del weights[name]
    odd = [n for n in fresh if not any(part in n for part in _MAY_BE_FRESH)]
    odd += [n for n in weights if n not in ours or ours[n].shape != weights[n].shape]
    if odd:
        raise UserError(
            f"{folder} holds a {saved.name} that does not fit this model's backbone: {len(odd)} tensors differ, e.g. "
            f"{', '.join(sorted(odd)[:3])}; take another model, or model.weights=none for a start from scratch"
        )
    return fresh


def _other_function(backbone: VSSD, saved: SavedBackbone) -> str:
    """Which settings of the backbone differ from those it was pretrained with."""
    theirs, ours = (_settings(c) for c in (backbone_config(saved.name, **saved.options), backbone.config))
    differ = [
        f"another {key}" if isinstance(ours[key], dict) else f"{key} {ours[key]} instead of {theirs[key]}"
        for key in ours
        if ours[key] != theirs[key]
    ]
    return "with " + ", ".join(differ) if differ else ""


def _settings(config: VSSDConfig) -> dict[str, object]:
    return {k: v for k, v in whole_settings(config).items() if k not in _NOT_OF_THE_FUNCTION}


def _head_and_backbone(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in whole_options(name, options).items() if k not in _NOT_OF_THE_FUNCTION}
