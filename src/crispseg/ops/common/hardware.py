"""What the device has, asked of it and never assumed; and what its matrix units take."""

from __future__ import annotations

import functools

import torch


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many; two stand in where Triton's interpreter runs."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def padded(size: int) -> int:
    """What a matrix unit takes: a power of two, sixteen at least."""
    return max(16, 1 << (size - 1).bit_length())
