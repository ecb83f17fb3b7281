"""Loading public VSSD checkpoints into our backbone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from crispseg.errors import UserError
from crispseg.models.pretrained import STEM, adapt_stem
from crispseg.models.vssd import VSSD
from crispseg.models.weights import read_weights, tensors_in

_CLASSIFIER = ("norm.", "head.")  # only in classification files
_OURS_ALONE = (".dco.", "outnorm")  # DCO is not in public files; classification files lack the output norms
_SHOWN = 6
_LEAST_FIT = 0.6  # of a file's tensors; a hybrid one keeps more than nine tenths, but for stage 4's mixers


def load_vssd_checkpoint(backbone: VSSD, path_or_state_dict: str | os.PathLike[str] | Mapping[str, Any]) -> list[str]:
    """Load every backbone tensor of a public VSSD checkpoint, or raise a UserError that names what does not fit.

    The public model's features come out with `fusion="raw"`, `dco=False`, `last_stage="attention"`.

    Args:
        backbone: The backbone to fill, or that of a model: `model.backbone`.
        path_or_state_dict: A file or mapping that holds `{"model": state_dict}`, `{"state_dict": ...}` as segmentation
            frameworks write it (names prefixed `backbone.`), or a bare state dict.

    Returns:
        The backbone's own names that the file does not hold and that keep their fresh values: DCO's gates always, the
            output norms for a classification file.
    """
    if isinstance(path_or_state_dict, Mapping):
        content, where = dict(path_or_state_dict), ""
    else:
        content, where = read_weights(path_or_state_dict), f" in {os.fspath(path_or_state_dict)}"
    given = _backbone_part(tensors_in(content))
    ours = backbone.state_dict()

    missing = [n for n in ours if n not in given and not any(part in n for part in _OURS_ALONE)]
    missing = [n for n in missing if not n.endswith("num_batches_tracked")]
    unexpected = [n for n in given if n not in ours]
    wrong_shape = [
        f"{n} (file {_shape(given[n])}, model {_shape(ours[n])})"
        for n in given
        if n in ours and given[n].shape != ours[n].shape
    ]
    problems = [
        f"{what}: {_shorten(names)}"
        for what, names in (
            ("not in the file", missing),
            ("not in the model", unexpected),
            ("of another shape", wrong_shape),
        )
        if names
    ]
    if problems:
        raise UserError(f"the checkpoint{where} does not fit this backbone; {'; '.join(problems)}{_advice(given)}")
    backbone.load_state_dict(given, strict=False)
    return [n for n in ours if n not in given]


def start_from_checkpoint(backbone: VSSD, path: str | os.PathLike[str], bands: Sequence[str] = ()) -> str:
    """Take over what fits of a public VSSD checkpoint, as a start for training; says in a sentence what that is.

    Public files are hybrid (softmax attention in stage 4) and raw: a model with NC-SSD throughout, or with another
    fusion, takes the rest. A file that is mostly of another network is refused as by `load_vssd_checkpoint`.
    """
    given = _backbone_part(tensors_in(read_weights(path)))
    ours = backbone.state_dict()
    adapted = adapt_stem(given, STEM, backbone.in_channels, bands)
    fitting = {name: tensor for name, tensor in given.items() if name in ours and ours[name].shape == tensor.shape}
    if STEM not in fitting or len(fitting) < _LEAST_FIT * len(given):
        load_vssd_checkpoint(backbone, path)
    backbone.load_state_dict(fitting, strict=False)
    facts = [f"{len(fitting)} of its {len(given)} tensors", *([adapted] if adapted else [])]
    if left := [name for name in given if name not in fitting]:
        places = sorted({".".join(name.split(".")[:2] + name.split(".")[4:5]) for name in left})
        facts.append(f"left out, as this model has no such tensors: {len(left)} under {', '.join(places)}")
    if backbone.config.fusion != "raw":
        facts.append(f"the file was trained with raw fusion and this model has {backbone.config.fusion}")
    return f"the public checkpoint {os.fspath(path)} ({'; '.join(facts)})"


def _backbone_part(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    if any(name.startswith("backbone.") for name in tensors):
        tensors = {n.removeprefix("backbone."): t for n, t in tensors.items() if n.startswith("backbone.")}
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(_CLASSIFIER)}


def _advice(given: dict[str, Tensor]) -> str:
    """The likely cause, when the file tells it."""
    if not any(name.startswith("patch_embed.") for name in given):
        return ". Is it a VSSD checkpoint?"
    last = 'last_stage="attention"' if any(".attn.to_qkv." in name for name in given) else 'last_stage="ncssd"'
    width = given["patch_embed.conv3.1.conv.weight"].shape[0] if "patch_embed.conv3.1.conv.weight" in given else "?"
    bands = given["patch_embed.conv1.conv.weight"].shape[1] if "patch_embed.conv1.conv.weight" in given else "?"
    return f". The file has width {width}, {bands} bands and {last}: create the backbone alike"


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _shorten(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
