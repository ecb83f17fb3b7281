"""LayerNorm of channels-last maps, alone or with the product, the ReLU and the coarser map's addition that follow it.

Inference only. Every function is its formula in plain torch; on CUDA a Triton kernel takes its place.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from crispseg.ops.choice import kernels_apply
from crispseg.ops.resizing import resize_add

_LARGEST = 4096  # channels that one program can hold
_LARGEST_PRODUCT = 512


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Of x (..., C) over its last axis."""
    if kernels_apply(x, weight, bias) and x.shape[-1] <= _LARGEST:
        from crispseg.ops.kernels import normalize as kernels

        return kernels.layer_norm(x, weight, bias, eps)
    return functional.layer_norm(x, weight.shape, weight, bias, eps)


def norm_relu_add(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor,
    coarser: Tensor,
) -> Tensor:
    """relu(LayerNorm(x) @ weight + bias) + coarser resized, pixel centres kept: one step of a top-down pyramid.

    x (B, H, W, C), weight (C, out), coarser (B, h, w, out). Neither the norm nor the product is stored.
    """
    tensors = (x, norm_weight, norm_bias, weight, bias, coarser)
    if kernels_apply(*tensors) and x.shape[-1] <= _LARGEST_PRODUCT:
        from crispseg.ops.kernels import normalize as kernels

        return kernels.norm_relu_add(x, norm_weight, norm_bias, eps, weight, bias, coarser)
    normed = functional.layer_norm(x, norm_weight.shape, norm_weight, norm_bias, eps)
    return resize_add(functional.linear(normed, weight.t(), bias).relu_(), coarser)
