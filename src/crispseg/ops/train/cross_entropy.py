"""Cross-entropy of a map of logits, summed over the pixels that count, with gradients.

The kernel is one in each direction (and a small one that adds parts).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.dispatch import FLOATS, operator, too_many

_MOST_CLASSES = 256


@operator("cross_entropy", dtypes=FLOATS, of=1)
def summed_cross_entropy(logits: Tensor, target: Tensor, ignored: int, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """Label-smoothed cross-entropy of logits (B, C, H, W) with labels (B, H, W): its sum, in float32, over pixels whose
    label is not the ignored one, and how many these are."""
    total = functional.cross_entropy(
        logits.float(), target, ignore_index=ignored, label_smoothing=smoothing, reduction="sum"
    )
    return total, (target != ignored).sum()


@summed_cross_entropy.unless
def _(logits: Tensor, target: Tensor, *rest: Any, **options: Any) -> str | None:
    if logits.dim() != 4 or logits.numel() == 0 or target.shape != logits[:, 0].shape:
        return "not a map of logits with labels of its size"
    if target.dtype != torch.int64:
        return f"labels in {target.dtype}"
    return too_many(logits.shape[1], _MOST_CLASSES, "classes")
