"""A head of one's own on our backbone: one line registers it, and every verb knows its name.

    crispseg.register_head("sum_head", SumHead, backbone="vssd_tiny")

The head may also declare what takes its place in a fused model (`for_evaluation(dtype)`, see `crispseg.fused`) and how
it runs over a scene in bands (`streamed()`, see `crispseg.exact.parts`). Neither is needed: a fused model runs it as it
is written on the fused backbone, and `--exact` says that it cannot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from crispseg.config import check_arguments
from crispseg.errors import UserError, unknown
from crispseg.models.base import Output, SegmentationModel
from crispseg.models.layers import resize
from crispseg.models.options import check_call
from crispseg.models.registry import entries, register_own
from crispseg.models.vssd import VARIANTS, VSSD, VSSDConfig, backbone_config

MakeHead = Callable[..., nn.Module]  # make(widths, num_classes, **options)


def register_head(name: str, make: MakeHead, *, backbone: str = "vssd_tiny", summary: str = "") -> None:
    """Make the head `make(widths, num_classes, **options)` on a VSSD backbone known as the model `name`.

    Args:
        name: What `create_model` and every command call it; registered again by the same module, it is the new one.
        make: Gives a module from the backbone's four feature maps (B, C, h, w), at strides 4, 8, 16 and 32 and with
            channels as `widths` says, to scores (B, classes, h, w) of any size, which are resized to the image's.
        backbone: One of `list_backbones()`.
        summary: One line for lists.

    Options of the model that are fields of `VSSDConfig` are the backbone's; all others go to `make`.
    """
    check_arguments(register_head, {"name": name, "backbone": backbone, "summary": summary})
    if backbone not in VARIANTS:
        raise unknown("backbone", backbone, VARIANTS)
    build = partial(_build, name, backbone, make)
    register_own(name, build, make, summary or f"{name} on {backbone}, registered by its user")


def is_own_head(name: str) -> bool:
    """Whether the model of this name is a head that its user registered."""
    build = getattr(entries().get(name), "build", None)
    return isinstance(build, partial) and build.func is _build


class OwnHead(SegmentationModel):
    def __init__(self, backbone: VSSDConfig, make: Callable[..., nn.Module], num_classes: int, in_channels: int):
        super().__init__()
        self.backbone = VSSD(backbone, in_channels)
        self.head = make(self.backbone.widths, num_classes)
        if not isinstance(self.head, nn.Module):
            raise UserError(f"a registered head must be a torch module, not {type(self.head).__name__}")

    def forward(self, image: Tensor) -> Tensor | Output:
        scores = self.head(self.backbone(image))
        if scores.dim() != 4 or scores.shape[1] != self.num_classes:
            raise UserError(
                f"the head of {self.name!r} gave {tuple(scores.shape)} where (batch, {self.num_classes} classes, "
                "height, width) was expected"
            )
        logits = resize(scores, image.shape[-2:])
        return Output(logits) if self.training else logits


def _build(name: str, backbone: str, make: MakeHead, num_classes: int, in_channels: int, **options: Any) -> OwnHead:
    fields = {field.name for field in dataclasses.fields(VSSDConfig)}
    own = {key: value for key, value in options.items() if key not in fields}
    check_call(name, make, "widths", "num_classes", **own)
    config = backbone_config(backbone, **{key: value for key, value in options.items() if key in fields})
    return OwnHead(config, partial(make, **own), num_classes, in_channels)
