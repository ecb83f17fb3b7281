"""Raw pixels as a network takes them: less each band's mean, over its standard deviation. The one place for that."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Normalisation(nn.Module):
    """Call it with raw pixels (..., bands, H, W) on its device; the means and spreads are copied there once. Within an
    exported model it is a part like any other."""

    mean: Tensor  # (bands, 1, 1)
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], device: torch.device | str = "cpu") -> None:
        super().__init__()
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32, device=device)[:, None, None])

    def forward(self, pixels: Tensor) -> Tensor:
        return (pixels - self.mean) / self.std

    def apply_(self, pixels: Tensor) -> Tensor:
        """The same in place, of float32 pixels."""
        return pixels.sub_(self.mean).div_(self.std)
