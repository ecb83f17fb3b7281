"""CRISP's network as cases take parts of it, and what these parts could be given."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from crispseg.fused.model import fuse
from crispseg.models.registry import create_model


class Work(NamedTuple):
    call: Callable[..., Any]  # of the module, the inputs and what is fixed: a tensor or several
    module: nn.Module
    inputs: tuple[Tensor, ...]  # with gradients, in training
    fixed: tuple[Tensor, ...] = ()  # without
    autocast: bool = True  # in training; the losses do without


class Place(NamedTuple):
    """Where in the network: how many images, and in which stage from 1."""

    batch: int
    stage: int


class Entry(NamedTuple):
    """An operator, and the stages of the network at whose sizes it is compared."""

    name: str
    make: Callable[[Network, Place], Work]
    stages: tuple[int, ...]


class Network:
    """crisp_tiny for images of 512 px, or crisp_nano for smaller ones; its parts, and maps that they could be given."""

    def __init__(self, device: torch.device, small: bool) -> None:
        self.device, self.size = device, 64 if small else 512
        torch.manual_seed(0)
        model: Any = create_model("crisp_nano" if small else "crisp_tiny")
        with torch.no_grad():
            for parameter in model.parameters():
                _draw_again(parameter)
        self.fused: Any = fuse(copy.deepcopy(model).eval(), torch.bfloat16, graphs=False).network.to(device)
        self.model: Any = model.train().to(device, memory_format=torch.channels_last)

    @property
    def head(self) -> Any:
        return self.model.head

    def block(self, stage: int) -> Any:
        return self.model.backbone.layers[stage - 1].blocks[1]

    def fused_block(self, stage: int) -> Any:
        return self.fused.backbone.blocks[stage - 1][1]

    def side(self, stage: int) -> int:
        """Of a stage's map; the stem's first map is that of stage 0."""
        return self.size // 2 ** (stage + 1)

    def draw(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(*shape, device=self.device).bfloat16().to(dtype)

    def map(self, place: Place, channels: int | None = None) -> Tensor:
        """(B, H, W, C), with the channels of the stage unless told otherwise."""
        side = self.side(place.stage)
        return self.draw(place.batch, side, side, channels or self.model.backbone.widths[place.stage - 1])

    def pixels(self, batch: int, channels: int) -> Tensor:
        """(B, L, C), as the head has them."""
        return self.draw(batch, self.side(1) ** 2, channels)

    def tokens(self, batch: int) -> Tensor:
        """(B, classes, D), of the head."""
        return self.draw(batch, self.model.num_classes, self.head.config.dim)

    def prototypes(self, batch: int) -> Tensor:
        """(B, classes, K, d), normalised, class after class in memory; closer to each other than the margin allows."""
        classes, config = self.model.num_classes, self.head.config
        sizes = (classes, batch, config.prototypes, config.descriptor_dim)
        drawn = torch.randn(sizes, device=self.device).transpose(0, 1)
        common = torch.randn(config.descriptor_dim, device=self.device)
        return functional.normalize(drawn + common, dim=-1).bfloat16().float()


def _draw_again(parameter: Tensor) -> None:
    """So that no bias is zero and no product so small that nobody would notice its absence."""
    if parameter.dim() > 1:
        parameter.normal_(std=parameter[0].numel() ** -0.5)
    else:
        parameter.add_(0.1 * torch.randn_like(parameter))
    parameter.copy_(parameter.bfloat16())
