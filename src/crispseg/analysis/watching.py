"""What the blocks of a backbone put out while an image passes through: caught by hooks, and measured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from crispseg.evaluate.spectrum import backbone_blocks
from crispseg.layout import to_channels_first
from crispseg.metrics import spectral_ratio
from crispseg.models.base import SegmentationModel

PLACES = {"mixer": "what the mixer adds", "block": "what the block passes on"}


@contextlib.contextmanager
def caught(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, Tensor]]:
    """Inside the block the last output of each module is kept under its name; the hooks go with the block."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
            outputs[name] = output.detach()

        return hook

    with contextlib.ExitStack() as hooks:
        for name, module in modules.items():
            hooks.callback(module.register_forward_hook(keep(name)).remove)
        yield outputs


def places(model: SegmentationModel, place: str) -> dict[str, nn.Module]:
    """The modules whose outputs are looked at, by their block's name; none without a VSSD backbone."""
    blocks = backbone_blocks(model)
    return blocks if place == "block" else {name: block.attn for name, block in blocks.items()}  # type: ignore[misc]


def ratios(outputs: Mapping[str, Tensor], cutoff: float) -> dict[str, float]:
    """E_high / E_low under each name, of one image's maps (1, H, W, C)."""
    return {name: float(spectral_ratio(to_channels_first(map_), cutoff)) for name, map_ in outputs.items()}


def activity(output: Tensor) -> Tensor:
    """How far each place (H, W) of a map (1, H, W, C) is from the map's mean: the length of the difference."""
    values = output[0].float()
    return (values - values.mean((0, 1))).norm(dim=-1)
