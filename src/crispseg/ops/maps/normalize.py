"""LayerNorm of channels-last maps, alone or with the product, the ReLU and the coarser map's addition that follow it.

`layer_norm` has gradients, the other is for inference only.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from crispseg.ops.common.norm import Norm
from crispseg.ops.dispatch import ANY_GPU, FLOATS, operator, too_many
from crispseg.ops.maps.resizing import resize_add

_LARGEST = 4096  # channels that one program can hold
_LARGEST_PRODUCT = 512


@operator("layer_norm", dtypes=FLOATS)
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Of x (..., C) over its last axis; on CUDA in x's precision, whatever autocasting would choose."""
    return functional.layer_norm(x, weight.shape, weight, bias, eps)


@layer_norm.unless
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> str | None:
    return "no elements" if x.numel() == 0 else too_many(x.shape[-1], _LARGEST, "channels")


@operator("norm_relu_add", gradients="none", room=ANY_GPU)
def norm_relu_add(x: Tensor, norm: Norm, weight: Tensor, bias: Tensor, coarser: Tensor) -> Tensor:
    """relu(norm(x) @ weight + bias) + coarser resized, pixel centres kept: one step of a top-down pyramid.

    x (B, H, W, C), weight (C, out), coarser (B, h, w, out). The kernel stores neither the norm nor the product.
    """
    return resize_add(functional.linear(norm(x), weight.t(), bias).relu_(), coarser)


@norm_relu_add.unless
def _(x: Tensor, *rest: object) -> str | None:
    return too_many(x.shape[-1], _LARGEST_PRODUCT, "channels")
