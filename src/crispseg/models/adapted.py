"""Any network of the field under our roof: one line registers it, and every verb knows its name.

    crispseg.register_network("unet", lambda num_classes, in_channels: smp.Unet("resnet18", None, ...), multiple=32)

Commands find the line in a module or file that CRISPSEG_MODELS names, or behind an entry point `crispseg.models`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from crispseg.config import check_arguments
from crispseg.errors import UserError
from crispseg.models.base import Output, SegmentationModel
from crispseg.models.options import check_call
from crispseg.models.registry import register_own

Build = Callable[..., nn.Module]  # build(num_classes=, in_channels=, **options)


def register_network(name: str, build: Build, *, multiple: int = 1, summary: str = "") -> None:
    """Make `build(num_classes=, in_channels=, **options)` known as the model `name`: it trains, evaluates, predicts
    whole scenes and exports like ours.

    Args:
        name: What `create_model` and every command call it; registered again by the same module, it is the new one.
        build: Gives any module from (B, bands, H, W) to logits (B, classes, h, w). Smaller maps are resized. Of
            several outputs (a tuple, torchvision's dict) the first is the result and the others train beside it.
        multiple: Sides the network needs, such as 32: images are filled up to a multiple of it, and the result cut.
        summary: One line for lists.
    """
    check_arguments(register_network, {"name": name, "multiple": multiple, "summary": summary})
    if multiple < 1:
        raise UserError(f"image sides are filled up to a multiple of at least 1, not {multiple}")

    def wrapped(num_classes: int, in_channels: int, **options: Any) -> SegmentationModel:
        from crispseg.models.libraries import mend_torchvision

        given = {"num_classes": num_classes, "in_channels": in_channels, **options}
        check_call(name, build, **given)
        mend_torchvision()
        return Adapted(build(**given), multiple)

    register_own(name, wrapped, build, summary or f"{name}, registered by its user")


class Adapted(SegmentationModel):
    """A network as it came, with images filled up before it and its answers brought to the image's size."""

    def __init__(self, network: nn.Module, multiple: int) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            raise UserError(f"a registered network must be a torch module, not {type(network).__name__}")
        self.network, self.multiple = network, multiple
        if getattr(network, "requires_divisible_input_shape", False) is True:
            network.requires_divisible_input_shape = False  # type: ignore[assignment]  # smp's check, met here

    def forward(self, image: Tensor) -> Tensor | Output:
        height, width = image.shape[-2:]
        if self.multiple > 1:
            image = functional.pad(image, (0, -width % self.multiple, 0, -height % self.multiple), mode="replicate")
        first, *others = (_cut(self._fitted(scores, image), height, width) for scores in _scores(self.network(image)))
        return Output(first, tuple(others)) if self.training else first

    def _fitted(self, scores: Tensor, image: Tensor) -> Tensor:
        if scores.dim() != 4 or (self.num_classes and scores.shape[1] != self.num_classes):
            raise UserError(
                f"network {self.name!r} gave {tuple(scores.shape)} where (batch, {self.num_classes} classes, height, "
                f"width) was expected"
            )
        if scores.shape[-2:] == image.shape[-2:]:
            return scores
        return functional.interpolate(scores, size=image.shape[-2:], mode="bilinear", align_corners=False)


def _cut(scores: Tensor, height: int, width: int) -> Tensor:
    """By negative padding: of a slice torch.export would write down whether it cut anything off the image it saw."""
    return functional.pad(scores, (0, width - scores.shape[-1], 0, height - scores.shape[-2]))


def _scores(answer: Any) -> list[Tensor]:
    """The maps of scores in what a network returned, the main one first."""
    if isinstance(answer, Tensor):
        return [answer]
    if isinstance(answer, Mapping):  # torchvision's "out" and "aux"
        return [answer["out"], *(value for key, value in answer.items() if key != "out")]
    if hasattr(answer, "logits"):  # transformers
        return [answer.logits]
    if isinstance(answer, list | tuple) and answer and all(isinstance(part, Tensor) for part in answer):
        return list(answer)
    raise UserError(f"a registered network must return a tensor of logits, not {type(answer).__name__}")
