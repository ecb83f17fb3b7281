"""What every segmentation model in the house shares: its name, its card, and the shape of its output."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from crispseg.normalisation import Normalisation

if TYPE_CHECKING:
    from crispseg.fused.model import Fused
    from crispseg.models.omp import Matches


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """The model card's facts. `mean` and `std` are per band, in the units of the raw pixels."""

    classes: tuple[str, ...] = ()
    palette: tuple[tuple[int, int, int], ...] = ()
    bands: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    dtype: str = ""  # of the raw pixels the model was trained on, e.g. uint8
    resolution: float | None = None  # metres per pixel the model was trained at
    resolutions: tuple[float, float] | None = None  # the finest and coarsest it has seen, with changes of scale
    temperature: float = 1.0  # logits are divided by it before they become probabilities
    training_data: str = ""
    started_from: str = ""  # what its training began with, in words
    licence: str = ""
    scores: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: str = ""

    def normalisation(self, device: torch.device | str = "cpu") -> Normalisation:
        """What makes raw pixels on a device into the network's input."""
        return Normalisation(self.mean, self.std, device)


class Output(NamedTuple):
    """What a model returns in training mode; in evaluation mode it returns the logits alone."""

    logits: Tensor  # (B, classes, H, W)
    aux: tuple[Tensor, ...] = ()  # logits of auxiliary heads, each (B, classes, H, W)
    prototypes: Tensor | None = None  # (B, classes, K, d), L2-normalised
    matches: Matches | None = None  # of pixels with every prototype, where matching is soft


class SegmentationModel(nn.Module):
    """Maps (B, bands, H, W) to logits (B, classes, H, W) in evaluation mode, to an Output in training mode.

    `create_model` fills in `name`, `options` and the sizes; `info` is the model card.
    """

    name: str = ""
    num_classes: int = 0
    in_channels: int = 0
    normalises: bool = False  # whether it takes raw pixels and normalises them itself, as exported files do
    one_size_because: str = ""  # why it can be exported for one size of image only; empty: it can for any
    options: dict[str, Any]
    info: ModelInfo
    matches_softly: bool = False  # whether its training output has `matches`
    training_only: tuple[str, ...] = ()  # parts that evaluation does without, such as auxiliary heads
    origin: str = "random weights"  # what the weights in memory came from, in words; not saved
    loaded_as: str = ""  # the run, folder or file it was loaded from, by its name; not saved

    @property
    def title(self) -> str:
        """What its user knows it by: `name` is shared by all models of one kind."""
        return self.loaded_as or self.name

    def probabilities(self, logits: Tensor, dim: int = 1) -> Tensor:
        """Class probabilities of this model's logits, in float32, with the temperature that its card holds."""
        return (logits.float() / self.info.temperature).softmax(dim)

    def at_progress(self, progress: float) -> None:
        """Told before every training step how much of the training is done, from 0 to 1."""

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write config.json, model.safetensors and README.md (the model card); `crispseg.load` reads them."""
        from crispseg.models.folder import save

        save(self, folder)

    def fused(self, precision: torch.dtype | None = None, graphs: bool = True) -> Fused:
        """The same function for evaluation, as fast as the device allows; see docs/explanation/speed.md.

        precision: torch.float32, torch.bfloat16 or torch.float16; the model's own unless told. graphs: on CUDA, record
        a graph for each shape of image and replay it. Later changes to this model's weights are not seen.
        """
        from crispseg.fused.model import fuse

        return fuse(self, precision, graphs)
