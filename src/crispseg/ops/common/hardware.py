"""What the device has, asked of it and never assumed; and what its matrix units take."""

from __future__ import annotations

import functools

import torch


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many; two stand in where Triton's interpreter runs."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


@functools.cache
def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for it: GPUs from Ampere on, CPUs with AVX512-BF16 (Zen 4, Sapphire Rapids).

    oneDNN and CUDA imitate it elsewhere, which takes longer than float32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()


def padded(size: int) -> int:
    """What a matrix unit takes: a power of two, sixteen at least."""
    return max(16, 1 << (size - 1).bit_length())
