"""Which squares of a picture are hidden: a pure function of (seed, epoch, index), like its other changes."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from crispseg.pretrain.config import MaskingConfig
from crispseg.pretrain.draws import Whole, uniforms


def plan_hiding(how: MaskingConfig, seed: int, epochs: Whole, indices: Whole, size: int) -> Tensor:
    """(B, cells, cells) whether a cell is hidden: the same number of cells in every picture."""
    cells = math.ceil(size / how.cell)
    u = uniforms(seed, epochs, indices, cells**2, "hiding")
    ranks = u.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    hidden = ranks < max(round(how.hidden * cells**2), 1)
    return torch.from_numpy(hidden.reshape(len(indices), cells, cells))


def as_pixels(hidden: Tensor, cell: int, size: int) -> Tensor:
    """(B, 1, size, size)"""
    spread = hidden.repeat_interleave(cell, dim=1).repeat_interleave(cell, dim=2)
    return spread[:, None, :size, :size]


def nothing_hidden(count: int, size: int) -> Tensor:
    return torch.from_numpy(np.zeros((count, 1, size, size), bool))
