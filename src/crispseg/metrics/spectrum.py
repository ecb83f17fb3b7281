"""How much of a feature map is fine detail: its ratio of high- to low-frequency energy, image by image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from crispseg.errors import UserError
from crispseg.metrics.accumulate import Accumulator

ToMap = Callable[[str, tuple[Any, ...], Any], Tensor]
"""(module's name, its positional inputs, its output) -> feature map (B, C, H, W)."""


def band_energies(features: Tensor, cutoff: float = 0.5) -> tuple[Tensor, Tensor]:
    """Energy above and up to the cut-off, each (B,), of feature maps (B, C, H, W), summed over channels.

    The transform is orthonormal, so the two add up to the sum of squares of the map (Parseval). The cut-off
    is a radial frequency as a fraction of Nyquist (half a cycle per pixel); the map's mean is frequency 0 and
    stays in the low band. Half precisions are transformed in float32.
    """
    if features.ndim != 4:
        raise UserError(f"a feature map must be (B, C, H, W), not {tuple(features.shape)}")
    if not 0 < cutoff < 2**0.5:
        raise UserError(f"the spectral cut-off {cutoff:g} must lie between 0 and 1.41 (the corner of the spectrum)")
    values = features.detach()
    if values.dtype != torch.float64:
        values = values.float()
    energy = torch.fft.fft2(values, norm="ortho").abs().square().sum(dim=1)  # (B, H, W)
    height, width = values.shape[-2:]
    high = (radial_frequency(height, width) > cutoff).to(energy)
    return (energy * high).sum(dim=(1, 2)), (energy * (1 - high)).sum(dim=(1, 2))


def spectral_ratio(features: Tensor, cutoff: float = 0.5) -> Tensor:
    """E_high / E_low of each image, (B,), of feature maps (B, C, H, W); NaN for a map of zeros."""
    high, low = band_energies(features, cutoff)
    return high / low


def radial_frequency(height: int, width: int) -> Tensor:
    """Radial frequency (H, W) of each coefficient of `fft2` in units of Nyquist, from 0 to sqrt(2).

    In float64 on the CPU: a frequency that falls on the cut-off is on the same side whatever the device.
    """
    fy, fx = (torch.fft.fftfreq(n, d=0.5, dtype=torch.float64) for n in (height, width))
    return torch.hypot(fy[:, None], fx[None, :])


class SpectralMean(Accumulator):
    """Mean over images of the spectral ratio, for a list of names."""

    def __init__(self, names: tuple[str, ...], cutoff: float = 0.5) -> None:
        self.names = tuple(names)
        self.cutoff = cutoff
        super().__init__(
            {"names": self.names, "cutoff": cutoff},
            {
                "ratios": torch.zeros(len(self.names), dtype=torch.float64),
                "images": torch.zeros(len(self.names), dtype=torch.int64),
            },
        )

    def update(self, name: str, features: Tensor) -> None:
        """Add a batch of feature maps (B, C, H, W) under one of the names."""
        index = self.names.index(name)
        ratios = spectral_ratio(features, self.cutoff).cpu().double()
        self.sums["ratios"][index] += ratios.sum()
        self.sums["images"][index] += len(ratios)

    def ratios(self) -> dict[str, float]:
        """Mean E_high / E_low under each name; NaN where no image was seen."""
        means = self.sums["ratios"] / self.sums["images"]
        return dict(zip(self.names, means.tolist(), strict=True))


class SpectralProbe:
    """Watches modules inside a `with` block and keeps the mean spectral ratio of what they put out.

    with SpectralProbe({"stage 1": model.stages[0], ...}) as probe:
        for image in images:
            model(image)
    probe.mean.ratios()

    A module whose output is not (B, C, H, W) needs `to_map`; for tokens (B, L, C) it may use `tokens_to_map`.
    """

    def __init__(self, modules: Mapping[str, nn.Module], cutoff: float = 0.5, to_map: ToMap | None = None) -> None:
        self.modules = dict(modules)
        self.mean = SpectralMean(tuple(self.modules), cutoff)
        self._to_map = to_map or _output_as_is
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        for name, module in self.modules.items():
            self._handles.append(module.register_forward_hook(self._hook(name)))
        return self

    def __exit__(self, *exception: object) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _hook(self, name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def watch(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            self.mean.update(name, self._to_map(name, inputs, output))

        return watch


def tokens_to_map(tokens: Tensor, height: int, width: int) -> Tensor:
    """Tokens (B, H*W, C) in row-major order as a map (B, C, H, W)."""
    batch, length, channels = tokens.shape
    if length != height * width:
        raise UserError(f"{length} tokens do not fill a map of {height} x {width}")
    return tokens.transpose(1, 2).reshape(batch, channels, height, width)


def _output_as_is(name: str, inputs: tuple[Any, ...], output: Any) -> Tensor:
    if not isinstance(output, Tensor) or output.ndim != 4:
        what = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise UserError(f"module {name!r} puts out {what}, not a map (B, C, H, W); give the probe a `to_map`")
    return output
