"""Products of training on a CPU by oneDNN: linear layers and 1x1 convolutions in float32, and their gradients.

torch gives them to another library, which on some processors has less than half of oneDNN's speed. What is replaced is
torch's own functions, within a block of code, so that no network need know of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from crispseg.layout import as_matrix, to_channels_first, to_channels_last
from crispseg.ops.cpu import onednn
from crispseg.ops.dispatch import why_not_on_a_cpu

WAY = "training_products"
_LEAST = 1 << 22  # multiplications; a smaller product takes longer to begin than to make


def fast_products(device: torch.device, compiled: bool = False) -> contextlib.AbstractContextManager[Any]:
    """Within the block linear layers have their products, and those of their gradients, from oneDNN."""
    takes = device.type == "cpu" and not compiled and why_not_on_a_cpu(WAY) is None
    return _FastProducts() if takes else contextlib.nullcontext()


class _FastProducts(TorchFunctionMode):
    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        replacement = _REPLACED.get(function, function)
        return replacement(*args, **(kwargs or {}))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _product(x, weight, bias) if _takes(x, weight, bias) else functional.linear(x, weight, bias)


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    of_pixels = tuple(weight.shape[2:]) == (1, 1) and stride in (1, (1, 1)) and padding in (0, (0, 0)) and groups == 1
    if of_pixels and input.is_contiguous(memory_format=torch.channels_last) and _takes(input, weight, bias):
        return to_channels_first(_product(to_channels_last(input), as_matrix(weight), bias))
    return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)


_REPLACED: dict[Any, Callable[..., Any]] = {functional.linear: _linear, torch.conv2d: _conv2d}


def _takes(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    tensors = (x, weight) if bias is None else (x, weight, bias)
    return (
        x.dtype == torch.float32
        and x.numel() * weight.shape[0] >= _LEAST
        and not torch.is_autocast_enabled("cpu")
        and _saved_as_usual()
        and onednn.fits(*tensors, way=WAY)
    )


def _saved_as_usual() -> bool:
    """Not so within `torch.utils.checkpoint`: the backward pass computes that again, outside of the block."""
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks("asked whether there are any"):
            return True
    except RuntimeError:
        return False


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x weight^T + bias over the last axis; weight (out, in)."""
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    y: Tensor = _Product.apply(rows, weight.contiguous(), bias)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], -1)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """rows (n, in) -> (n, out)."""
        ctx.save_for_backward(rows, weight)
        return onednn.linear(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (rows, weight) = gradients, ctx.saved_tensors
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        return (
            onednn.linear(gradient, weight.t()) if of_rows else None,
            _weight_gradient(gradient, rows, weight) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )


def _weight_gradient(gradient: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """gradient^T rows: (n, out), (n, in) -> (out, in)."""
    if len(rows) <= rows.shape[1]:
        return onednn.linear(gradient.t(), rows.t())
    # With many rows that would copy both; the gradient of a convolution of single pixels takes them as they lie.
    pixels, gradient = (to_channels_first(x.contiguous()[None, :, None]) for x in (rows, gradient))
    # Dilation is nothing to a single pixel, but with it torch takes oneDNN where it has one thread, too.
    of_pixels = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 2)}
    rest = {"bias_sizes": None, "transposed": False, "output_padding": (0, 0), "groups": 1}
    _, found, _ = torch.ops.aten.convolution_backward(
        gradient, pixels, weight[..., None, None], **of_pixels, **rest, output_mask=(False, True, False)
    )
    return found.view_as(weight)
