"""Temperature scaling: the one number that logits are divided by so that confidences mean what they say.

The temperature with the least cross-entropy on held-out pixels. The sums hold that cross-entropy for a row of
temperatures, so they add up over images and processes, and no logits have to be kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from crispseg.metrics.accumulate import Accumulator

_STEPS = 41  # from a quarter to four
_REACH = 2.0  # powers of two either way


class TemperatureFit(Accumulator):
    """Sums of cross-entropies per temperature, over every `stride`-th pixel along either axis."""

    def __init__(self, stride: int = 4, ignore_index: int = 255) -> None:
        settings = {"stride": stride, "ignore_index": ignore_index}
        sums = {"loss": torch.zeros(_STEPS, dtype=torch.float64), "count": torch.zeros((), dtype=torch.int64)}
        super().__init__(settings, sums)
        self.stride, self.ignore_index = stride, ignore_index

    @staticmethod
    def temperatures() -> Tensor:
        return 2.0 ** torch.linspace(-_REACH, _REACH, _STEPS, dtype=torch.float64)

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add logits (classes, h, w) with labels (h, w)."""
        logits = logits[:, :: self.stride, :: self.stride].detach().float()
        labels = labels[:: self.stride, :: self.stride].to(logits.device)
        valid = labels != self.ignore_index
        x, truth = logits[:, valid].T, labels[valid].long()  # (n, classes), (n,)
        chosen = x.gather(1, truth[:, None])[:, 0]
        losses = [(torch.logsumexp(x / t, 1) - chosen / t).sum() for t in self.temperatures().tolist()]
        self.sums["loss"] += torch.stack(losses).double().cpu()
        self.sums["count"] += len(truth)

    def best(self) -> float:
        """The temperature of the least loss, between its neighbours by a parabola; 1 without finite scores."""
        loss = self.sums["loss"] / self.sums["count"]
        if not loss.isfinite().all():
            return 1.0
        lowest = int(loss.argmin())
        position = float(lowest)
        if 0 < lowest < _STEPS - 1:
            left, middle, right = loss[lowest - 1 : lowest + 2].tolist()
            bend = left - 2 * middle + right
            position += 0.5 * (left - right) / bend if bend > 0 else 0.0
        return float(2.0 ** (_REACH * (2 * position / (_STEPS - 1) - 1)))
