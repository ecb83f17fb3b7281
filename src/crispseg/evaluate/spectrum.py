"""How much fine detail each block of a VSSD backbone passes on, seen in the middle window of an image."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from crispseg.metrics import SpectralProbe
from crispseg.models.base import SegmentationModel
from crispseg.models.vssd import VSSD
from crispseg.predict.evaluate import Evaluator
from crispseg.raster.source import ArraySource, Window, read_reflected


def backbone_blocks(model: SegmentationModel) -> dict[str, nn.Module]:
    """The blocks by name; none for a model without a VSSD backbone."""
    backbone = getattr(model, "backbone", None)
    if not isinstance(backbone, VSSD):
        return {}
    return {
        f"stage {i} block {j}": block
        for i, stage in enumerate(backbone.layers, 1)
        for j, block in enumerate(stage.blocks, 1)  # type: ignore[arg-type]
    }


def spectral_ratios(evaluator: Evaluator, source: ArraySource, tile: int) -> dict[str, float]:
    """E_high / E_low of each block in the middle window (the whole image where `tile` is 0)."""
    blocks = backbone_blocks(evaluator.model)
    if not blocks:
        return {}
    height, width = (min(tile or side, side) for side in (source.height, source.width))
    window = Window((source.height - height) // 2, (source.width - width) // 2, height, width)
    with SpectralProbe(blocks, to_map=_channels_first) as probe:
        evaluator([read_reflected(source, window).values])
    return probe.mean.ratios()


def _channels_first(name: str, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return output.movedim(-1, 1)  # (B, H, W, C) -> (B, C, H, W)


def spread(images: int, wanted: int) -> set[int]:
    """Positions of at most `wanted` images, evenly from first to last."""
    return {i * images // min(wanted, images) for i in range(min(wanted, images))} if wanted > 0 else set()
