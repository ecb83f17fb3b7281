"""A pretrained backbone is a folder like a model's: config.json, model.safetensors and README.md (its card)."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor

from crispseg import __version__
from crispseg import config as configs
from crispseg.errors import UserError
from crispseg.files import replacing, write_json, write_text
from crispseg.models.budget import Budget, describing
from crispseg.models.dco import dco_config
from crispseg.models.storage import Storage, packed, unpacked
from crispseg.models.vssd import VSSD, VSSDConfig, create_backbone
from crispseg.models.weights import read_weight_names, read_weights
from crispseg.reading import read_json

KIND, FORMAT = "backbone", 1
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"


_SCORES = (
    "Share of pictures kept back from the training whose class is found from pooled features: `knn` by the nearest "
    "training pictures, `linear` by a linear map in closed form. Nothing else was trained."
)


@dataclasses.dataclass(frozen=True)
class BackboneInfo:
    """The card's facts. `mean` and `std` are what the pictures were normalised by, per band, in 8 bits."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    training_data: str = ""
    teacher: str = ""
    recipe: str = ""
    licence: str = ""
    scores: dict[str, float] = dataclasses.field(default_factory=dict)
    notes: str = ""


@dataclasses.dataclass(frozen=True)
class SavedBackbone:
    """What a backbone's folder holds."""

    name: str
    options: dict[str, Any]
    info: BackboneInfo
    weights: dict[str, Tensor]  # float32


def save_backbone(
    backbone: VSSD,
    folder: str | os.PathLike[str],
    name: str,
    info: BackboneInfo,
    storage: Storage = "full",
) -> None:
    """Write the folder, config.json last, with all settings; `storage` says in how many bits."""
    from safetensors.torch import save as to_bytes

    folder = Path(folder)
    tensors = packed(backbone.state_dict(), storage)
    with replacing(folder / WEIGHTS) as aside:
        aside.write_bytes(to_bytes(tensors))
    write_text(folder / CARD, backbone_card(name, backbone, info))
    config = {
        "format": FORMAT,
        "kind": KIND,
        "crispseg": __version__,
        "name": name,
        "in_channels": backbone.in_channels,
        "options": whole_settings(backbone.config),
        "info": configs.to_dict(info),
    }
    write_json(folder / CONFIG, config)


class _Config(TypedDict):
    """What config.json says."""

    format: int
    name: str
    in_channels: int
    options: dict[str, Any]
    info: BackboneInfo


def whole_settings(config: VSSDConfig) -> dict[str, Any]:
    """A backbone's config as plain values, DCO's own settings spelt out: defaults may change after it was saved."""
    values: dict[str, Any] = configs.to_dict(config)
    return {**values, "dco": configs.to_dict(dco_config(config.dco))}


def is_backbone_folder(path: str | os.PathLike[str]) -> bool:
    try:
        config = read_json(Path(path) / CONFIG)
    except UserError:
        return False
    return isinstance(config, dict) and config.get("kind") == KIND


def read_backbone(folder: str | os.PathLike[str]) -> SavedBackbone:
    """What is saved in a backbone's folder, checked."""
    folder = Path(folder)
    config = _read_config(folder)
    return SavedBackbone(config["name"], config["options"], config["info"], unpacked(read_weights(folder / WEIGHTS)))


def _read_config(folder: Path) -> _Config:
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"{folder} is not a backbone's folder: it has no {CONFIG}")
    values = read_json(path)
    if not isinstance(values, dict) or values.get("kind") != KIND:
        raise UserError(f"{folder} holds a whole model, not a backbone")
    version = values.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise UserError(f"{folder} was saved by a newer crispseg ({values.get('crispseg', '?')}); upgrade crispseg")
    try:
        config: _Config = configs.checked(_Config, values, "it")
    except UserError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    return config


def load_backbone(folder: str | os.PathLike[str]) -> VSSD:
    """The backbone saved in a folder, with its own options, in evaluation mode."""
    path = Path(folder) / CONFIG
    config, held = _read_config(Path(folder)), read_weight_names(Path(folder) / WEIGHTS)
    with describing(path), Budget(held, str(path)):
        backbone = create_backbone(config["name"], config["in_channels"], **config["options"])
    saved = read_backbone(folder)
    _check_fit(backbone, saved, folder)
    backbone.load_state_dict(saved.weights)
    backbone.origin = f"the backbone in {os.fspath(folder)}"
    return backbone.eval()


def _check_fit(backbone: torch.nn.Module, saved: SavedBackbone, folder: str | os.PathLike[str]) -> None:
    ours = backbone.state_dict()
    odd = [n for n in {*ours, *saved.weights} if n not in ours or n not in saved.weights]
    odd += [n for n in ours if n in saved.weights and ours[n].shape != saved.weights[n].shape]
    if odd:
        raise UserError(
            f"{folder} holds a {saved.name} that does not fit this backbone: {len(odd)} tensors differ, e.g. "
            f"{', '.join(sorted(odd)[:3])}"
        )


def backbone_card(name: str, backbone: VSSD, info: BackboneInfo) -> str:
    """The card as Markdown; what is not known is left out."""
    parameters = sum(p.numel() for p in backbone.parameters())
    lines = [f"# {name}", "", f"A pretrained backbone, {parameters / 1e6:.2f} M parameters, crispseg {__version__}."]
    lines += ["", "```", "crisp train data=my_folder model.weights=FOLDER", "```", ""]
    facts = {
        "Training data": info.training_data,
        "Teacher": info.teacher,
        "Recipe": info.recipe,
        "Licence": info.licence,
    }
    lines += [f"- {what}: {value}" for what, value in facts.items() if value]
    if info.scores:
        lines += ["", "## Scores", "", _SCORES, ""]
        lines += [f"- {what}: {100 * value:.1f} %" for what, value in info.scores.items()]
    if info.notes:
        lines += ["", "## Limits", "", info.notes]
    return "\n".join(lines) + "\n"
