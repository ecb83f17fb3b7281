"""The two halves of a block up to where the map must be whole again, each as one operation for inference.

Both begin with `Start`: y = x + depthwise3x3(x) + bias, and its LayerNorm. `conv_norm_project` goes on to a product,
`conv_norm_mlp` through the MLP to the end of the block. Every function is its formula in plain torch; on CUDA a Triton
kernel takes its place, in which the normalised map and the hidden units never leave the program that made them.
Their GELU is the tanh form, at most 5e-4 from the exact one: less than half precision rounds.

Maps are (B, H, W, C).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from crispseg.ops.dispatch import kernels_apply
from crispseg.ops.maps.depthwise import depthwise3x3_norm

# Channels of the maps that the kernels take. With more of them a convolution and products of cuBLAS are faster, and
# with few pixels in some cases, too.
_FEW = (32, 64)
_MLP_OF_MANY_PIXELS = (128,)
_MANY_PIXELS = 16384
_UNITS = 64  # hidden units come in multiples of it


class Start(NamedTuple):
    """The depthwise convolution, weight (C, 1, 3, 3) as `depthwise.packed` lays it out, and the LayerNorm after it."""

    weight: Tensor
    bias: Tensor
    gamma: Tensor
    beta: Tensor
    eps: float


class MLP(NamedTuple):
    fc1: Tensor  # (C, hidden), a view of (hidden, C)
    fc1_bias: Tensor
    fc2: Tensor  # (hidden, C), a view of (C, hidden)
    fc2_bias: Tensor


def project_takes(x: Tensor) -> bool:
    """Whether `conv_norm_project` runs as a kernel."""
    return kernels_apply(x) and x.shape[-1] in _FEW and _many(x)


def mlp_takes(x: Tensor, hidden: int) -> bool:
    """Whether `conv_norm_mlp` runs as a kernel; where not, it is faster to call what it consists of one by one."""
    fits = x.shape[-1] in _FEW or (x.shape[-1] in _MLP_OF_MANY_PIXELS and _many(x))
    return kernels_apply(x) and fits and hidden % _UNITS == 0


def conv_norm_project(x: Tensor, start: Start, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """y, and LayerNorm(y) @ matrix: (B, H, W, C) and (B, H, W, out).

    matrix (C, out), a view of (out, C). The second result may be a view into a wider map.
    """
    if project_takes(x):
        from crispseg.ops.infer import block_launch

        return block_launch.project(x, start, matrix)
    y, normed = depthwise3x3_norm(x, *start)
    return y, normed @ matrix


def conv_norm_mlp(x: Tensor, start: Start, mlp: MLP) -> Tensor:
    """y + gelu(LayerNorm(y) @ fc1 + fc1_bias) @ fc2 + fc2_bias."""
    if mlp_takes(x, mlp.fc1.shape[1]):
        from crispseg.ops.infer import block_launch

        return block_launch.mlp(x, start, mlp)
    y, normed = depthwise3x3_norm(x, *start)
    return y + functional.gelu(normed @ mlp.fc1 + mlp.fc1_bias) @ mlp.fc2 + mlp.fc2_bias


def _many(x: Tensor) -> bool:
    return x[..., 0].numel() > _MANY_PIXELS
