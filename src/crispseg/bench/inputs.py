"""Random images. Never zeros: a GPU draws less power on them and runs faster than it would on anyone's data."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.bench.settings import Settings

_COARSER = (4, 16, 64)  # noise of these pixel sizes is added, so that deep layers have something to see too


def random_images(batch: int, bands: int, size: int, settings: Settings, seed: int) -> Tensor:
    """Images (batch, bands, size, size) of unit variance, float32 but exact in bf16: all precisions see the same."""
    generator = torch.Generator(settings.device).manual_seed(seed)

    def noise(side: int) -> Tensor:
        return torch.randn(batch, bands, side, side, generator=generator, device=settings.device)

    images = noise(size)
    for pixels in _COARSER:
        coarse = noise(max(size // pixels, 1))
        images += functional.interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False)
    images = (images / images.std()).bfloat16().float()
    return images.contiguous(memory_format=settings.memory_format)
