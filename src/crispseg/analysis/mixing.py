"""What a mixer adds that a mean over all tokens would not: how much its output y^ varies beside the skip D V, and the
same model with every y^ at its mean."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from crispseg.evaluate.spectrum import backbone_blocks
from crispseg.models.base import SegmentationModel
from crispseg.models.vssd import NCSSDMixer
from crispseg.ops import Gates, ncssd


def mixers(model: SegmentationModel) -> dict[str, NCSSDMixer]:
    """The NC-SSD mixers of a model by their block's name; none without a VSSD backbone."""
    found = {name: block.attn for name, block in backbone_blocks(model).items()}
    return {name: mixer for name, mixer in found.items() if isinstance(mixer, NCSSDMixer)}


class Liveliness:
    """Sums over images of var(y^) / var(D V) of each block: variances over tokens, summed over channels."""

    def __init__(self) -> None:
        self.ratios: dict[str, list[float]] = {}

    @contextlib.contextmanager
    def watching(self, model: SegmentationModel) -> Iterator[None]:
        """Every image that passes in the block is counted; the mixers' inputs are mixed a second time for it."""
        with contextlib.ExitStack() as hooks:
            for name, mixer in mixers(model).items():
                hooks.callback(mixer.register_forward_hook(self._note(name)).remove)
            yield

    def _note(self, name: str) -> Callable[[Any, tuple[Tensor, ...], Any], None]:
        def hook(mixer: NCSSDMixer, inputs: tuple[Tensor, ...], output: Any) -> None:
            self.ratios.setdefault(name, []).append(variance_ratio(mixer, inputs[0]))

        return hook

    def mean(self) -> dict[str, float]:
        return {name: sum(values) / len(values) for name, values in self.ratios.items()}


def variance_ratio(mixer: NCSSDMixer, x: Tensor) -> float:
    """var(y^) / var(D V) for a mixer's input (1, H, W, C)."""
    v, b, c, rho = _tokens(mixer, x)
    fused = ncssd(v, b, c, rho, torch.zeros_like(mixer.D), Gates(), mixer.rule)
    skip = mixer.D[:, None] * v
    return float(_variance(fused) / _variance(skip).clamp(min=torch.finfo(torch.float32).tiny))


@contextlib.contextmanager
def at_its_mean(model: SegmentationModel) -> Iterator[None]:
    """Inside the block every mixer's y^, residual included, is replaced by its mean over tokens; calibration and skip
    follow as ever. What a model loses so is what its mixers select."""
    changed = mixers(model)
    try:
        for mixer in changed.values():
            mixer.forward = _mean_only(mixer)  # type: ignore[assignment, method-assign]
        yield
    finally:
        for mixer in changed.values():
            del mixer.forward


def _mean_only(mixer: NCSSDMixer) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        v, b, c, rho = _tokens(mixer, x)
        gates = mixer.gates()
        fused = ncssd(v, b, c, rho, torch.zeros_like(mixer.D), Gates(residual=gates.residual), mixer.rule)
        y = calibrate_constant(fused.mean(1, keepdim=True), mixer.D[:, None] * v, gates, mixer.rule.skip == "before")
        return mixer.finish(y, mixer.project(x)[0])

    return forward


def calibrate_constant(mean: Tensor, skip: Tensor, gates: Gates, skip_before: bool) -> Tensor:
    """Steps 3 and 4 of DCO on a y^ that is `mean` (B, 1, H, P) at every token, and the skip (B, L, H, P)."""
    y = mean + skip if skip_before else mean.expand_as(skip)
    mu = y.mean(1, keepdim=True)
    if gates.omega is not None:
        y = y + gates.omega[:, None] * (y - mu)
    s = 0.0 if gates.s is None else gates.s
    t = 0.0 if gates.t is None else gates.t
    y = (1 + s) * mu + (1 + t) * (y - mu)
    return y if skip_before else y + skip


def _tokens(mixer: NCSSDMixer, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _, xbc, dt = mixer.project(x)
    return mixer.tokens(mixer.convolve(xbc), dt)


def _variance(tokens: Tensor) -> Tensor:
    return tokens.double().var(1, correction=0).sum()
