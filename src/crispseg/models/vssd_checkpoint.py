"""Loading public VSSD checkpoints into our backbone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from crispseg.errors import UserError
from crispseg.models.pretrained import STEM, adapt_stem
from crispseg.models.vssd import VARIANTS, VSSD
from crispseg.models.weights import read_weights, tensors_in

_CLASSIFIER = ("norm.", "head.")  # only in classification files
_OURS_ALONE = (".dco.", "outnorm")  # DCO is not in public files; classification files lack the output norms
_SHOWN = 6
_LEAST_FIT = 0.6  # of a file's tensors; a hybrid one keeps more than nine tenths, but for stage 4's mixers
# What of a model may start fresh, by a part of its tensors' names; the last holds for all others.
_FRESH = {
    ".dco.": "DCO's gates",
    ".selection.": "selective fusion's temperatures",
    "outnorm": "the output norms",
    "layers.3.": "stage 4's mixers",
    "": "others",
}


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
    _refuse_another_size(given, backbone, where)

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
    _refuse_another_size(given, backbone, f" in {os.fspath(path)}")
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
    if fresh := _fresh_parts([name for name in ours if name not in fitting]):
        facts.append(f"not in the file, so fresh: {', '.join(fresh)}")
    return f"the public checkpoint {os.fspath(path)} ({'; '.join(facts)})"


def other_fusion(backbone: VSSD) -> str:
    """What a user must know who starts this backbone from a public checkpoint; nothing if its fusion is theirs."""
    fusion = backbone.config.fusion
    if fusion == "raw":
        return ""
    return (
        f"public VSSD files were trained with raw fusion and this model has {fusion}, in which their mixers compute "
        "something else; model.options.fusion=raw keeps what they learnt"
    )


def _fresh_parts(names: list[str]) -> list[str]:
    """What these tensors are, each kind once and in words."""
    counted = [name for name in names if not name.endswith("num_batches_tracked")]
    found = {next(words for part, words in _FRESH.items() if part in name) for name in counted}
    return [words for words in _FRESH.values() if words in found]


def _backbone_part(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    if any(name.startswith("backbone.") for name in tensors):
        tensors = {n.removeprefix("backbone."): t for n, t in tensors.items() if n.startswith("backbone.")}
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(_CLASSIFIER)}


def _refuse_another_size(given: dict[str, Tensor], backbone: VSSD, where: str) -> None:
    stem = given.get("patch_embed.conv3.1.conv.weight")
    if stem is None:
        return
    blocks = {tuple(name.split(".")[1:4:2]) for name in given if name.startswith("layers.") and ".blocks." in name}
    width, depths = stem.shape[0], tuple(sum(stage == str(i) for stage, _ in blocks) for i in range(4))
    config = backbone.config
    if (width, depths) == (config.width, config.depths):
        return
    name = next((n for n, one in VARIANTS.items() if (one.width, one.depths) == (width, depths)), "")
    fitting = f"take model={name.replace('vssd', 'crisp')}, or {name} in Python"
    raise UserError(
        f"the checkpoint{where} is a {name or 'VSSD'} of {_size(width, depths)}, and this backbone has "
        f"{_size(config.width, config.depths)}; {fitting if name else 'no model here has that size'}"
    )


def _size(width: int, depths: tuple[int, ...]) -> str:
    return f"width {width} and depths {', '.join(map(str, depths))}"


def _advice(given: dict[str, Tensor]) -> str:
    """The likely cause, when the file tells it."""
    if not any(name.startswith("patch_embed.") for name in given):
        return ". Is it a VSSD checkpoint?"
    last = 'last_stage="attention"' if any(".attn.to_qkv." in name for name in given) else 'last_stage="ncssd"'
    bands = given["patch_embed.conv1.conv.weight"].shape[1] if "patch_embed.conv1.conv.weight" in given else "?"
    return f". The file has {bands} bands and {last}: create the backbone alike"


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _shorten(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
