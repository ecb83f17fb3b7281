"""Products and convolutions on a CPU with weights laid out for oneDNN beforehand, without gradients (`training.py`).

torch's own products are those of another library, which is slower on some processors, and its convolutions lay their
weights out anew at each call. The operators that do better are the ones that torch.compile ends up with; they are
private, so all that is known of them is here (whether they exist: `dispatch.why_not_on_a_cpu`), and where `applies`
says no, callers use torch's public operations. Weights laid out in this way are opaque tensors: whoever keeps them
drops them from copies and pickles.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from crispseg.ops.common.hardware import multiplies_bfloat16
from crispseg.ops.dispatch import why_not_on_a_cpu

_PLAIN = (Tensor, torch.nn.Parameter)  # not what stands for a tensor while something is traced


def applies(*tensors: Tensor, way: str = "onednn") -> bool:
    """Whether these tensors can be worked on here: `fits`, and no gradient is asked for."""
    return not torch.is_grad_enabled() and fits(*tensors, way=way)


def fits(*tensors: Tensor, way: str) -> bool:
    """Whether these tensors are on a CPU, of one precision that it multiplies in, and nobody is tracing, exporting,
    compiling, counting or transforming operations, or has switched this way off."""
    return (
        not torch.compiler.is_compiling()
        and all(type(x) in _PLAIN and x.device.type == "cpu" and x.dtype == tensors[0].dtype for x in tensors)
        and _multiplies(tensors[0].dtype)
        and torch._C._get_mkldnn_enabled()
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch._C._are_functorch_transforms_active()
        and why_not_on_a_cpu(way) is None
        and not torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    )


def _multiplies(dtype: torch.dtype) -> bool:
    return dtype == torch.float32 or (dtype == torch.bfloat16 and multiplies_bfloat16(torch.device("cpu")))


class Linear(NamedTuple):
    """x @ weight.T + bias of rows (n, in), through an activation: "none", "relu" or "gelu"."""

    weight: Tensor
    bias: Tensor | None
    activation: str

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None = None, activation: str = "none") -> Linear:
        """weight (out, in)."""
        return cls(torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()), bias, activation)

    def __call__(self, rows: Tensor) -> Tensor:
        return linear(rows, self.weight, self.bias, self.activation)

    def added_to(self, residual: Tensor, rows: Tensor) -> Tensor:
        return linear_added_to(residual, rows, self.weight, self.bias)


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none") -> Tensor:
    """oneDNN's product of rows and a weight (out, in) as it is: laying the weight out is part of every call."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, activation, [], "none")  # GELU's exact form
    return y


def linear_added_to(residual: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """residual (n, out) + `linear`, in one pass."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise.binary(rows, residual, weight, bias, "add")
    return y


class Convolution(NamedTuple):
    """A convolution of maps (B, H, W, C) of one or more groups of channels, through an activation: "none", "relu" or
    "swish", which torch calls SiLU."""

    weight: Tensor
    bias: Tensor | None
    padding: tuple[int, int]
    stride: tuple[int, int]
    groups: int
    activation: str

    @classmethod
    def of(
        cls,
        weight: Tensor,
        bias: Tensor | None,
        padding: tuple[int, int],
        stride: tuple[int, int] = (1, 1),
        groups: int = 1,
        activation: str = "none",
        size: tuple[int, int] = (64, 64),
    ) -> Convolution:
        """weight (out, in / groups, h, w). Maps may be of any size; those not far from `size` need no other layout."""
        channels_last = weight.contiguous(memory_format=torch.channels_last)
        usual = (1, weight.shape[1] * groups, *size)
        laid_out = torch.ops.mkldnn._reorder_convolution_weight(channels_last, padding, stride, (1, 1), groups, usual)
        return cls(laid_out, bias, padding, stride, groups, activation)

    def __call__(self, x: Tensor) -> Tensor:
        channels_first, (weight, bias, padding, stride, groups, activation) = x.permute(0, 3, 1, 2), self
        y: Tensor = torch.ops.mkldnn._convolution_pointwise(
            channels_first, weight, bias, padding, stride, (1, 1), groups, activation, [], ""
        )
        return y.permute(0, 2, 3, 1)
