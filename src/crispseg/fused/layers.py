"""What the fused networks are made of: packed weights, and products that end in a bias and an activation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from crispseg.ops.common.norm import Norm
from crispseg.ops.cpu import onednn
from crispseg.ops.maps.normalize import layer_norm

T = TypeVar("T", bound=tuple[Any, ...])

ALIGNMENT = 8  # widths of matrix products are multiples of it: others take a slow path in half precision


class Ready(nn.Module, ABC):
    """A module that makes something of its weights for a CPU, when first asked for and again when they were moved or
    cast. Copies and pickles go without: they make their own."""

    _ready: Any = None

    def ready(self) -> Any:
        if self._ready is None:
            self._ready = self.make_ready()
        return self._ready

    @abstractmethod
    def make_ready(self) -> Any: ...

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_ready": None}

    def _apply(self, fn: Any, recurse: bool = True) -> Ready:
        self._ready = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self


class Packed(nn.Module):
    """A module whose weights are buffers, made from a model's float64 weights and laid out in memory as these are."""

    def keep(self, dtype: torch.dtype, **tensors: Tensor | None) -> None:
        for name, tensor in tensors.items():
            self.register_buffer(name, None if tensor is None else tensor.detach().to(dtype), persistent=False)


class Kept(Packed, Generic[T]):
    """A NamedTuple as a module, so that its tensors move with the others'; `packed` gives the tuple. One within it that
    is kept already stays in its own precision."""

    kind: Any

    def __init__(self, values: T, dtype: torch.dtype) -> None:
        super().__init__()
        given: Any = values
        self.kind = type(given)
        for name, value in given._asdict().items():
            if isinstance(value, Tensor):
                self.keep(dtype, **{name: value})
            else:
                setattr(self, name, Kept(value, dtype) if isinstance(value, tuple) else value)

    def packed(self) -> T:
        values = (getattr(self, name) for name in self.kind._fields)
        made: T = self.kind(*(value.packed() if isinstance(value, Kept) else value for value in values))
        return made


class FusedNorm(Kept[Norm]):
    """A LayerNorm; `order` renumbers its channels."""

    def __init__(self, norm: nn.LayerNorm, dtype: torch.dtype, order: Tensor | None = None) -> None:
        every = slice(None) if order is None else order
        super().__init__(Norm(norm.weight[every], norm.bias[every], norm.eps), dtype)

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, *self.packed())


class Product(Packed, Ready):
    """x @ weight.T + bias for x (..., in), in one kernel with its ReLU if it has one."""

    weight: Tensor  # (in, out), a view of (out, in)
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype, relu: bool = False) -> None:
        super().__init__()
        self.relu = relu
        self.keep(dtype, weight=weight.contiguous().t(), bias=bias)

    @classmethod
    def of(cls, layer: Any, dtype: torch.dtype, relu: bool = False) -> Product:
        """What a linear layer or a 1x1 convolution computes."""
        return cls(layer.weight.flatten(1), layer.bias, dtype, relu)

    def make_ready(self) -> onednn.Linear:
        return onednn.Linear.of(self.weight.t(), self.bias, "relu" if self.relu else "none")

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if onednn.applies(rows):
            return self.ready()(rows).view(*x.shape[:-1], -1)
        y = linear_relu(rows, self.weight, self.bias) if self.relu else torch.addmm(self.bias, rows, self.weight)
        return y.view(*x.shape[:-1], -1)


def linear_relu(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(rows (n, in) @ weight (in, out) + bias)."""
    if rows.is_cuda:
        return torch._addmm_activation(bias, rows, weight)
    return torch.addmm(bias, rows, weight).relu_()


def linear_gelu(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """gelu(rows (n, in) @ weight (in, out) + bias).

    cuBLAS ends a product in the tanh form of GELU, at most 5e-4 from the exact one: less than half precision rounds.
    """
    if rows.is_cuda and rows.dtype in (torch.bfloat16, torch.float16):
        return torch._addmm_activation(bias, rows, weight, use_gelu=True)
    return functional.gelu(torch.addmm(bias, rows, weight))


def channels_last(weight: Tensor) -> Tensor:
    return weight.contiguous(memory_format=torch.channels_last)


def aligned(width: int) -> int:
    return -(-width // ALIGNMENT) * ALIGNMENT


def padded(rows: Tensor, count: int) -> Tensor:
    """Rows of zeros added at the end, up to `count`."""
    return functional.pad(rows, (0, 0) * (rows.dim() - 1) + (0, count - rows.shape[0]))
