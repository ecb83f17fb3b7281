"""The two halves of a block up to where the map must be whole again, each as one operation for inference.

Both begin with `Start`: y = x + depthwise3x3(x) + bias, and its LayerNorm; `conv_norm` is that alone.
`conv_norm_project` goes on to a product, `conv_norm_mlp` through the MLP to the end of the block. In the kernels of
these two the normalised map and the hidden units never leave the program that made them. Their GELU is the tanh form,
at most 5e-4 from the exact one: less than half precision rounds.

Maps are (B, H, W, C).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import functional

from crispseg.ops.dispatch import DATA_CENTRE, FLOATS, operator, too_many
from crispseg.ops.maps.depthwise import depthwise3x3
from crispseg.ops.maps.normalize import layer_norm

# Channels of the maps that the kernels take. With more of them a convolution and products of cuBLAS are faster, and
# with few pixels in some cases, too.
_FEW = (32, 64)
_MLP_OF_MANY_PIXELS = (128,)
_MANY_PIXELS = 16384
_UNITS = 64  # hidden units come in multiples of it
_LARGEST_NORM = 1024  # channels that one program can hold
# On an H200 one kernel is 0.5 to 1.5 us faster than two, at 32 to 512 channels and batch 1 and 16, up to this size; at
# twice the size (128 channels of 64 x 64 pixels, batch 16) two that each read whole cache lines are 2 us faster.
_LARGEST_MAP = 1 << 22
_SLOWER = "a convolution and products of cuBLAS are faster"


class Start(NamedTuple):
    """The depthwise convolution, weight (C, 1, 3, 3) as `depthwise.packed` lays it out, and the LayerNorm after it."""

    weight: Tensor
    bias: Tensor
    gamma: Tensor
    beta: Tensor
    eps: float

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y = x + conv(x) + bias, and its LayerNorm."""
        return conv_norm(x, self)


class MLP(NamedTuple):
    fc1: Tensor  # (C, hidden), a view of (hidden, C)
    fc1_bias: Tensor
    fc2: Tensor  # (hidden, C), a view of (C, hidden)
    fc2_bias: Tensor


@operator("conv_norm", dtypes=FLOATS, gradients="none", of=1)
def conv_norm(x: Tensor, start: Start) -> tuple[Tensor, Tensor]:
    """y = x + conv(x) + bias, and its LayerNorm."""
    y = depthwise3x3(x, start.weight, start.bias, residual=True)
    return y, layer_norm(y, start.gamma, start.beta, start.eps)


@conv_norm.unless
def _(x: Tensor, start: Start) -> str | None:
    return too_many(x.shape[-1], _LARGEST_NORM, "channels") or too_many(x.numel(), _LARGEST_MAP, "numbers in the map")


@operator("conv_norm_project", gradients="none", room=DATA_CENTRE, of=1)
def conv_norm_project(x: Tensor, start: Start, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """y, and LayerNorm(y) @ matrix: (B, H, W, C) and (B, H, W, out).

    matrix (C, out), a view of (out, C). The second result may be a view into a wider map.
    """
    y, normed = start(x)
    return y, normed @ matrix


@conv_norm_project.unless
def _(x: Tensor, *rest: Any) -> str | None:
    return None if x.shape[-1] in _FEW and _many(x) else _SLOWER


@operator("conv_norm_mlp", gradients="none", room=DATA_CENTRE, of=1)
def conv_norm_mlp(x: Tensor, start: Start, mlp: MLP) -> Tensor:
    """y + gelu(LayerNorm(y) @ fc1 + fc1_bias) @ fc2 + fc2_bias."""
    y, normed = start(x)
    return y + functional.gelu(normed @ mlp.fc1 + mlp.fc1_bias) @ mlp.fc2 + mlp.fc2_bias


@conv_norm_mlp.unless
def _(x: Tensor, start: Start, mlp: MLP) -> str | None:
    fits = x.shape[-1] in _FEW or (x.shape[-1] in _MLP_OF_MANY_PIXELS and _many(x))
    return None if fits and mlp.fc1.shape[1] % _UNITS == 0 else _SLOWER


def _many(x: Tensor) -> bool:
    return x[..., 0].numel() > _MANY_PIXELS
