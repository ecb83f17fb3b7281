"""A released model is a folder: config.json, model.safetensors and README.md (the model card)."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import torch

from crispseg import __version__
from crispseg import config as configs
from crispseg.errors import UserError, nearest
from crispseg.files import replacing, write_json, write_text
from crispseg.models.backbone_folder import KIND as BACKBONE
from crispseg.models.base import ModelInfo, SegmentationModel
from crispseg.models.budget import Budget, Held, describing
from crispseg.models.device import find_device
from crispseg.models.hub import is_hub
from crispseg.models.plugins import VARIABLE
from crispseg.models.registry import create_model, entries
from crispseg.models.shipped import find_folder, is_shipped, title_of
from crispseg.models.weights import read_weight_names, read_weights
from crispseg.reading import read_json

FORMAT = 1
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
ONNX, CHECKPOINTS = ".onnx", (".pth", ".pt", ".ckpt", ".safetensors")


def save(model: SegmentationModel, folder: str | os.PathLike[str], half: bool = False) -> None:
    """Write the model's folder; each file appears whole or not at all, config.json last.

    With `half` the weights are stored in half precision; `load` gives float32 again.
    """
    from safetensors.torch import save as to_bytes

    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; a model is saved as a folder")
    # before anything is written: whoever fills in a card by hand may have arrays, or have erred
    model.info = configs.build(ModelInfo, configs.to_dict(model.info), "info.")
    tensors = {name: _stored(tensor, half) for name, tensor in model.state_dict().items()}
    with replacing(folder / WEIGHTS) as aside:
        aside.write_bytes(to_bytes(tensors))  # safetensors' own writer makes files that only their owner may read
    write_text(folder / CARD, model_card(model))
    write_json(
        folder / CONFIG,
        {
            "format": FORMAT,
            "crispseg": __version__,
            "name": model.name,
            "num_classes": model.num_classes,
            "in_channels": model.in_channels,
            "options": configs.to_dict(model.options),
            "info": configs.to_dict(model.info),
        },
    )


def load(
    folder: str | os.PathLike[str], num_classes: int | None = None, device: str | torch.device = "cpu"
) -> SegmentationModel:
    """The model saved in a folder, in evaluation mode and float32.

        model = crispseg.load("crisp_nano_aerial")

    Args:
        folder: What `model.save` wrote, a training run (its best weights so far), the name of a model that comes with
            crispseg, `hf:org/name` on the Hugging Face hub, or an ONNX file written by `crisp export`.
        num_classes: How many classes you expect; another number is an error.
        device: Where to put it.
    """
    _check_place(folder)
    place = find_device(device)
    if Path(folder).suffix.lower() == ONNX:
        return _load_onnx(folder, num_classes)
    word, title, folder = os.fspath(folder), title_of(folder), find_folder(folder)
    saved = _read_config(folder)
    _check_classes(saved["num_classes"], num_classes, folder)
    held = read_weight_names(folder / WEIGHTS)
    model = _build(saved, held, folder / CONFIG)
    _check_fit(model, held, folder)
    model.info, model.loaded_as = saved["info"], title
    model.load_state_dict(read_weights(folder / WEIGHTS))
    model.origin = f"the trained model {word}" if is_shipped(folder) or is_hub(word) else f"the model in {folder}"
    return model.to(place).eval()


def _check_place(folder: object) -> None:
    from crispseg.fused.model import Fused

    if isinstance(folder, Fused):
        raise UserError("this is a fused model; give the model it was made from, which is made fast on the way")
    if not isinstance(folder, str | os.PathLike):
        raise UserError(
            f"a model must be one of crispseg's, or the folder or name of a saved one, not a {type(folder).__name__}; "
            "crispseg.register_network makes one of any torch network"
        )


def _build(saved: SavedModel, held: Mapping[str, Held], path: Path) -> SegmentationModel:
    """The network that config.json describes, as long as it is no larger than the weights that lie beside it."""
    if saved["name"] not in entries():
        raise UserError(
            f"{path} is of the network {configs.shown(saved['name'])}, which is not known here: if it is your own, "
            f"name the file that registers it in {VARIABLE}; else upgrade crispseg{nearest(saved['name'], entries())}"
        )
    with describing(path), Budget(held, str(path)):
        return create_model(saved["name"], saved["num_classes"], saved["in_channels"], **saved["options"])


def _load_onnx(path: str | os.PathLike[str], num_classes: int | None) -> SegmentationModel:
    from crispseg.models.onnx_file import load_onnx

    model = load_onnx(path)
    model.loaded_as = title_of(path)
    _check_classes(model.num_classes, num_classes, path)
    model.origin = f"the file {os.fspath(path)}"
    return model


def _check_classes(found: int, expected: int | None, where: str | os.PathLike[str]) -> None:
    if expected is not None and expected != found:
        raise UserError(f"the model in {os.fspath(where)} has {found} classes, not {expected}")


def _stored(tensor: torch.Tensor, half: bool) -> torch.Tensor:
    tensor = tensor.detach().cpu().contiguous()
    return tensor.half() if half and tensor.is_floating_point() else tensor


def model_card(model: SegmentationModel) -> str:
    """The card as Markdown; what is not known is left out."""
    info = model.info
    parameters = sum(p.numel() for p in model.parameters())
    lines = [
        f"# {model.name}",
        "",
        f"Semantic segmentation, {parameters / 1e6:.2f} M parameters, crispseg {__version__}.",
    ]
    lines += ["", "```python", "import crispseg", "model = crispseg.load(FOLDER)", "```", ""]
    facts = {
        "Classes": ", ".join(info.classes) or str(model.num_classes),
        "Bands": ", ".join(info.bands) or str(model.in_channels),
        "Normalisation": _normalisation(info),
        "Resolution": _resolution(info),
        "Temperature": f"{info.temperature:.3g} (logits are divided by it)" if info.temperature != 1 else "",
        "Training data": info.training_data,
        "Training started from": info.started_from,
        "Licence": info.licence,
    }
    lines += [f"- {what}: {value}" for what, value in facts.items() if value]
    if info.scores:
        lines += ["", "## Scores", "", *_score_lines(info.scores)]
    if info.notes:
        lines += ["", "## Notes", "", info.notes]
    return "\n".join(lines) + "\n"


def _resolution(info: ModelInfo) -> str:
    trained = f"{info.resolution:g} m per pixel" if info.resolution else ""
    seen = f"for pixels of {info.resolutions[0]:.3g} to {info.resolutions[1]:.3g} m" if info.resolutions else ""
    return ", ".join(part for part in (trained, seen) if part)


def _normalisation(info: ModelInfo) -> str:
    if not info.mean:
        return ""
    return f"mean {', '.join(f'{x:g}' for x in info.mean)}; std {', '.join(f'{x:g}' for x in info.std)}"


def _score_lines(scores: dict[str, Any]) -> list[str]:
    """In percent, as scores are told everywhere; config.json has fractions."""
    told = {name: f"{100 * value:.2f} %" if isinstance(value, float) else value for name, value in scores.items()}
    return [f"- {name}: {'not defined' if value is None else value}" for name, value in told.items()]


class SavedModel(TypedDict):
    """What config.json says."""

    format: int
    name: str
    num_classes: int
    in_channels: int
    options: dict[str, Any]
    info: ModelInfo


def _read_config(folder: Path) -> SavedModel:
    path = folder / CONFIG
    if not path.is_file():
        how, suffix = "", folder.suffix.lower()
        if suffix in CHECKPOINTS:
            how = "; `crisp convert` makes one of a checkpoint by a rival's authors"
        elif suffix == ".pt2":
            how = "; of exported files, those that end in .onnx take the place of a model"
        elif (folder / "images").is_dir():
            how = "; it holds images: where a model and data are named, the model comes first"
        raise UserError(f"{folder} is not a model folder: it has no {CONFIG}{how}")
    values = read_json(path)
    if isinstance(values, dict) and values.get("kind") == BACKBONE:
        raise UserError(
            f"{folder} holds a backbone and no model; train a model from it with "
            f"`crisp train FOLDER {shlex.quote(f'model.weights={folder}')}`"
        )
    _refuse_newer(values, folder)
    try:
        saved: SavedModel = configs.checked(SavedModel, values, "it")
        _check_card(saved["info"])
    except UserError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    return saved


def _refuse_newer(values: Any, folder: Path) -> None:
    version = values.get("format") if isinstance(values, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise UserError(
            f"{folder} was saved by crispseg {configs.shown(values.get('crispseg', '?'))[1:-1]} in a newer format "
            f"({version}; this version reads up to {FORMAT}); upgrade crispseg"
        )


def _check_card(info: ModelInfo) -> None:
    if not (info.temperature > 0 and math.isfinite(info.temperature)):
        raise UserError("info.temperature must be a positive number")
    if not all(map(math.isfinite, (*info.mean, *info.std, info.resolution or 0.0, *(info.resolutions or ())))):
        raise UserError("info.mean, info.std, info.resolution and info.resolutions must be finite numbers")
    if info.resolutions is not None and not 0 < info.resolutions[0] <= info.resolutions[1]:
        raise UserError("info.resolutions must be two positive numbers, the smaller first")
    if not all(0 <= value <= 255 for colour in info.palette for value in colour):
        raise UserError("the colours of info.palette are numbers from 0 to 255")


def _check_fit(model: SegmentationModel, weights: Mapping[str, Held], folder: Path) -> None:
    ours = model.state_dict()
    absent = [name for name in ours if name not in weights]
    extra = [name for name in weights if name not in ours]
    if absent or extra:
        names = ", ".join((absent or extra)[:3])
        raise UserError(
            f"{folder / WEIGHTS} and {CONFIG} do not belong together: {len(absent)} tensors are missing and "
            f"{len(extra)} are unknown, e.g. {names}"
        )
    for name, tensor in ours.items():
        if weights[name].shape != tuple(tensor.shape):
            raise UserError(
                f"{folder / WEIGHTS} and {CONFIG} do not belong together: {name} is {weights[name].shape} in "
                f"the file, but {model.num_classes} classes and {model.in_channels} bands make it {tuple(tensor.shape)}"
            )
