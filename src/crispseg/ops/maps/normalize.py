"""LayerNorm of channels-last maps, alone or with the product, the ReLU and the coarser map's addition that follow it.

Every function is its formula in plain torch; on CUDA Triton kernels take its place, with gradients for `layer_norm`
and for inference only otherwise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.dispatch import kernels_apply, kernels_wanted
from crispseg.ops.maps.resizing import resize_add

_LARGEST = 4096  # channels that one program can hold
_LARGEST_PRODUCT = 512
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Of x (..., C) over its last axis; on CUDA in x's precision, whatever autocasting would choose."""
    usual = all(t.is_cuda and t.dtype in _DTYPES and t.numel() > 0 for t in (x, weight, bias))
    if usual and x.shape[-1] <= _LARGEST and kernels_wanted():
        return _layer_norm(x, weight, bias, eps)
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
        from crispseg.ops.maps import normalize_kernels as kernels

        return kernels.norm_relu_add(x, norm_weight, norm_bias, eps, weight, bias, coarser)
    normed = functional.layer_norm(x, norm_weight.shape, norm_weight, norm_bias, eps)
    return resize_add(functional.linear(normed, weight.t(), bias).relu_(), coarser)


# Registered as operators so that torch.compile takes them as they are; their bodies import Triton when first run.


@torch.library.custom_op(
    "crispseg::layer_norm", mutates_args=(), schema="(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor"
)
def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    from crispseg.ops.maps import normalize_kernels as kernels

    with torch.cuda.device_of(x):
        return kernels.layer_norm(x, weight, bias, eps)


@_layer_norm.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op(
    "crispseg::layer_norm_backward",
    mutates_args=(),
    schema="(Tensor gradient, Tensor x, Tensor weight, Tensor bias, float eps) -> (Tensor, Tensor, Tensor)",
)
def _layer_norm_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    from crispseg.ops.maps import normalize_gradients as kernels

    with torch.cuda.device_of(x):
        return kernels.gradients(gradient, x, weight, bias, eps)


@_layer_norm_backward.register_fake
def _(gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), torch.empty_like(weight), torch.empty_like(bias)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return *_layer_norm_backward(gradient, *ctx.saved_tensors, ctx.eps), None


_layer_norm.register_autograd(_differentiate, setup_context=_remember)
