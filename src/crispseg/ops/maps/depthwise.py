"""Depthwise 3x3 convolution of channels-last maps with what surrounds it in the network.

`depthwise3x3` is the convolution with bias, activation and residual; `depthwise3x3_norm` the residual one with the
LayerNorm that follows. On CUDA both run as Triton kernels, elsewhere (and for float64, without Triton, in an exported
program, or with CRISPSEG_OPS_BACKEND=torch) as torch's own operations.

Maps are (B, H, W, C); they may be views into wider maps, which are not copied as long as their channels lie side by
side. Kernels compute in float32 and return x's dtype; weights may be of another precision than x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.errors import UserError, unknown
from crispseg.ops.dispatch import kernels_wanted
from crispseg.ops.maps.normalize import layer_norm

Activation = Literal["none", "silu", "relu"]

_ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "none": lambda x, inplace: x,
    "silu": functional.silu,
    "relu": functional.relu,
}
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LARGEST_NORM = 1024  # channels that one program can hold


def depthwise3x3(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    residual: bool = False,
    activation: Activation = "none",
    stride: int = 1,
) -> Tensor:
    """act(conv(x) + bias), plus x if `residual`: (B, H, W, C) -> (B, H', W', C), H' = ceil(H / stride).

    weight: (C, 1, 3, 3), padded by zeros outside the map; with its channels side by side in memory (see `packed`) the
    kernels load it faster.
    """
    if activation not in _ACTIVATIONS:
        raise unknown("activation", activation, _ACTIVATIONS)
    if stride not in (1, 2) or (residual and stride != 1):
        raise UserError(f"a depthwise convolution has stride 1, or 2 without residual; got {stride}, {residual=}")
    if _use_kernels(x):
        return _depthwise3x3(x, weight, bias, residual, activation, stride)
    # torch would take a view into a wider map for channels first: slow here, and in whatever reads the result.
    channels_first = x.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    y = functional.conv2d(
        channels_first,
        weight.to(x.dtype),
        None if bias is None else bias.to(x.dtype),
        stride,
        padding=1,
        groups=x.shape[3],
    )
    y = _ACTIVATIONS[activation](y.permute(0, 2, 3, 1), inplace=not torch.is_grad_enabled())
    return x + y if residual else y


def depthwise3x3_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm_weight: Tensor, norm_bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """y = x + conv(x) + bias, and the LayerNorm of y over channels: one kernel, and both in x's precision, on CUDA."""
    if _use_kernels(x) and x.shape[3] <= _LARGEST_NORM:
        return _depthwise3x3_norm(x, weight, bias, norm_weight, norm_bias, eps)
    y = depthwise3x3(x, weight, bias, residual=True)
    return y, layer_norm(y, norm_weight, norm_bias, eps)


def packed(weight: Tensor) -> Tensor:
    """The same weight (C, 1, 3, 3), stored with its channels side by side."""
    channels = weight.shape[0]
    return weight.reshape(channels, 9).t().contiguous().t().view(channels, 1, 3, 3)


def _use_kernels(x: Tensor) -> bool:
    return x.is_cuda and x.dtype in _DTYPES and kernels_wanted()


# Registered as operators so that torch.compile takes them as they are; their bodies import Triton when first run.


@torch.library.custom_op(
    "crispseg::depthwise3x3",
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor? bias, bool residual, str activation, int stride) -> Tensor",
)
def _depthwise3x3(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: bool, activation: str, stride: int
) -> Tensor:
    from crispseg.ops.maps import depthwise_launch

    with torch.cuda.device_of(x):
        return depthwise_launch.forward(x, weight, bias, residual, activation, stride)


@_depthwise3x3.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, residual: bool, activation: str, stride: int) -> Tensor:
    batch, height, width, channels = x.shape
    return x.new_empty(batch, (height + stride - 1) // stride, (width + stride - 1) // stride, channels)


@torch.library.custom_op(
    "crispseg::depthwise3x3_backward",
    mutates_args=(),
    schema="(Tensor gradient, Tensor x, Tensor weight, Tensor? bias, bool residual, str activation, int stride)"
    " -> (Tensor, Tensor, Tensor)",
)
def _depthwise3x3_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, residual: bool, activation: str, stride: int
) -> tuple[Tensor, Tensor, Tensor]:
    from crispseg.ops.maps import depthwise_launch

    with torch.cuda.device_of(x):
        dx, dw, db = depthwise_launch.backward(gradient, x, weight, bias, residual, activation, stride)
    return dx, dw, weight.new_empty(0) if db is None else db


@_depthwise3x3_backward.register_fake
def _(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, residual: bool, activation: str, stride: int
) -> tuple[Tensor, Tensor, Tensor]:
    db = weight.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    return x.new_empty(x.shape), weight.new_empty(weight.shape), db


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, *ctx.options = inputs
    ctx.save_for_backward(x, weight, bias)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias = ctx.saved_tensors
    dx, dw, db = _depthwise3x3_backward(gradient, x, weight, bias, *ctx.options)
    return dx, dw, None if bias is None else db, None, None, None


_depthwise3x3.register_autograd(_differentiate, setup_context=_remember)


@torch.library.custom_op(
    "crispseg::depthwise3x3_norm",
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor? bias, Tensor norm_weight, Tensor norm_bias, float eps)"
    " -> (Tensor, Tensor)",
)
def _depthwise3x3_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm_weight: Tensor, norm_bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    from crispseg.ops.maps import depthwise_launch

    with torch.cuda.device_of(x):
        return depthwise_launch.forward_norm(x, weight, bias, (norm_weight, norm_bias, eps))


@_depthwise3x3_norm.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm_weight: Tensor, norm_bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


@torch.library.custom_op(
    "crispseg::depthwise3x3_norm_backward",
    mutates_args=(),
    schema="(Tensor? gradient, Tensor of_normed, Tensor x, Tensor weight, Tensor? bias, Tensor y, Tensor norm_weight,"
    " Tensor norm_bias, float eps) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _depthwise3x3_norm_backward(
    gradient: Tensor | None,
    of_normed: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    y: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from crispseg.ops.maps import depthwise_launch

    with torch.cuda.device_of(x):
        dx, dw, db, dgamma, dbeta = depthwise_launch.backward_norm(
            gradient, of_normed, x, weight, bias, y, (norm_weight, norm_bias, eps)
        )
    return dx, dw, weight.new_empty(0) if db is None else db, dgamma, dbeta


@_depthwise3x3_norm_backward.register_fake
def _(
    gradient: Tensor | None,
    of_normed: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    y: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    db = weight.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    of_norm = norm_weight.new_empty(norm_weight.shape), norm_bias.new_empty(norm_bias.shape)
    return x.new_empty(x.shape), weight.new_empty(weight.shape), db, *of_norm


def _remember_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, norm_weight, norm_bias, ctx.eps = inputs
    ctx.save_for_backward(x, weight, bias, output[0], norm_weight, norm_bias)
    ctx.set_materialize_grads(False)


def _differentiate_norm(ctx: Any, gradient: Tensor | None, of_normed: Tensor | None) -> tuple[Tensor | None, ...]:
    x, weight, bias, *norm = ctx.saved_tensors
    if of_normed is not None:
        dx, dw, db, *of_norm = _depthwise3x3_norm_backward(gradient, of_normed, x, weight, bias, *norm, ctx.eps)
    elif gradient is not None:
        dx, dw, db = _depthwise3x3_backward(gradient, x, weight, bias, True, "none", 1)
        of_norm = [None, None]
    else:
        return (None,) * 6
    return dx, dw, None if bias is None else db, *of_norm, None


_depthwise3x3_norm.register_autograd(_differentiate_norm, setup_context=_remember_norm)
