"""Weights in fewer bytes: half precision, or 8 bits with a scale per output channel.

An 8-bit tensor NAME is kept as NAME (int8) and NAME + SCALE (float16, one per row of its first axis): a weight is
their product. Vectors (biases, norms, gates) and statistics stay in half precision, where they are small anyway.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from crispseg.errors import UserError

Storage = Literal["full", "half", "int8"]
SCALE = "/scale"
_LEAST = 1024  # numbers; smaller tensors are not worth it


def packed(weights: dict[str, Tensor], storage: Storage) -> dict[str, Tensor]:
    """The tensors as they are written to a file."""
    made: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        tensor = tensor.detach().cpu().contiguous()
        if storage == "full" or not tensor.is_floating_point():
            made[name] = tensor
        elif storage == "int8" and tensor.ndim > 1 and tensor.numel() >= _LEAST:
            made[name], made[name + SCALE] = _quantised(tensor)
        else:
            made[name] = tensor.half()
    return made


def unpacked(held: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in float32 again."""
    made: dict[str, Tensor] = {}
    for name, tensor in held.items():
        scale = held.get(name + SCALE)
        if name.endswith(SCALE):
            continue
        if scale is not None:
            if tensor.ndim < 2 or scale.shape != tensor.shape[:1]:
                raise UserError(f"the scales of {name} are {tuple(scale.shape)}, its weights {tuple(tensor.shape)}")
            tensor = tensor.float() * scale.float().view(-1, *[1] * (tensor.ndim - 1))
        made[name] = tensor.float() if tensor.is_floating_point() else tensor
    return made


def _quantised(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """(int8, float16 scales): the largest weight of each output channel is 127 steps."""
    largest = tensor.flatten(1).abs().amax(1).float()
    scale = (largest / 127).clamp(min=6.2e-5).half()  # float16's smallest normal number
    steps = tensor.float() / scale.float().view(-1, *[1] * (tensor.ndim - 1))
    return steps.round().clamp(-127, 127).to(torch.int8), scale
