"""Mixup and cutmix of neighbours: pictures 2k and 2k + 1 of a set's endless order make a pair.

Which pictures are neighbours follows from (seed, epoch) and how they are mixed from (seed, pair), so a mixed picture
is as pure a function of (seed, epoch, index) as a single one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from crispseg.pretrain.changes import Changes, inside
from crispseg.pretrain.draws import Whole, uniforms


class Mix(NamedTuple):
    """For each of B pictures."""

    own: Tensor  # (B,) the share that the picture itself keeps, of its label too
    blend: Tensor  # (B,) its weight where there is no box
    box: Tensor  # (B, 4) where the neighbour stands instead

    def to(self, device: torch.device) -> Mix:
        return Mix(*(x.to(device, non_blocking=True) for x in self))


def plan_mix(how: Changes, seed: int, positions: Whole) -> Mix:
    """`positions` in the set's endless order: whole pairs, an even one first."""
    u = uniforms(seed, np.zeros_like(positions), positions // 2, 6, "mixing")
    wanted = (u[:, 0] < how.mix) & (how.mixup + how.cutmix > 0)
    boxes = (u[:, 1] < 0.5) if how.mixup and how.cutmix else np.full(len(u), not how.mixup)
    blend = np.where(wanted & ~boxes, _beta(u[:, 2], how.mixup), 1.0)
    share = np.where(wanted & boxes, 1 - _beta(u[:, 3], how.cutmix), 0.0)  # area of the box
    side = np.sqrt(share)
    top, left = u[:, 4] * (1 - side), u[:, 5] * (1 - side)
    box = np.stack([top, left, top + side, left + side], axis=1) * (share > 0)[:, None]
    own = np.where(share > 0, 1 - share, blend)
    return Mix(*(torch.from_numpy(x.astype(np.float32)) for x in (own, blend, box)))


def _beta(u: np.ndarray, alpha: float) -> np.ndarray:
    """The symmetric beta distribution's quantiles."""
    from scipy.special import betaincinv

    return np.asarray(betaincinv(alpha, alpha, u)) if alpha > 0 else np.ones_like(u)


def swapped(x: Tensor) -> Tensor:
    """Every picture's neighbour."""
    return x.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)


def apply_mix(images: Tensor, mix: Mix) -> Tensor:
    """(B, 3, s, s) with neighbours mixed in."""
    others = swapped(images)
    blend = mix.blend[:, None, None, None]
    return torch.where(inside(mix.box, images.shape[-1]), others, images * blend + others * (1 - blend))
