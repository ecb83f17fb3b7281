"""3x3 convolutions of channels-last maps with what follows them. Inference only.

Every function is its formula in plain torch; on CUDA, where there are few channels, a Triton kernel takes its place.
Weights are torch's (out, in, 3, 3), best stored channels last: the kernels read them as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.dispatch import kernels_apply

_FEW = 48  # channels up to which a program holds the weights; cuDNN is fast where there are more
_MOST_BANDS = 16
_MOST_MIXED = 128  # channels of a result whose sums a program holds
_IMAGES = (torch.float32, torch.bfloat16, torch.float16, torch.uint8)


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor, stride: int = 1, residual: Tensor | None = None, relu: bool = False
) -> Tensor:
    """A convolution of x (B, H, W, C) with "same" padding, its bias, residual and ReLU.

    With many channels these are further passes, or, where torch has cuDNN do all, a summand of weight zero. Left to
    itself torch would take the unwritten output for that, and what was in that memory may not have been finite.
    """
    if stride == 1 and _few(weight) and weight.shape[0] <= _FEW and kernels_apply(x, weight, bias):
        from crispseg.ops.maps import convolution_kernels as kernels

        return kernels.convolve(x, weight, bias, residual, relu)
    channels_first, padding = x.permute(0, 3, 1, 2), weight.shape[-1] // 2
    same_shape = stride == 1 and weight.shape[0] == x.shape[3]
    if relu and residual is None and same_shape and kernels_apply(x, weight, bias):
        y = torch.cudnn_convolution_add_relu(
            channels_first, weight, channels_first, 0.0, bias, (1, 1), (padding, padding), (1, 1), 1
        )
        return y.permute(0, 2, 3, 1)
    y = functional.conv2d(channels_first, weight, None, stride, padding).permute(0, 2, 3, 1).add_(bias)
    y = y if residual is None else y.add_(residual)
    return y.relu_() if relu else y


def convolve_image(image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(conv + bias) with stride 2 of an image (B, bands, H, W) of any type and layout, cast to the weights' type:
    a map (B, H', W', C)."""
    supported = image.is_cuda and image.dtype in _IMAGES and image.shape[1] <= _MOST_BANDS
    if supported and _is_3x3(weight) and weight.shape[0] <= _MOST_MIXED and kernels_apply(weight, bias):
        from crispseg.ops.maps import convolution_kernels as kernels

        return kernels.convolve_image(image, weight, bias)
    image = image.to(weight.dtype, memory_format=torch.channels_last)
    return convolve(image.permute(0, 2, 3, 1), weight, bias, stride=2, relu=True)


def halve_and_mix(x: Tensor, weight: Tensor, bias: Tensor, mix: Tensor, mix_bias: Tensor) -> Tensor:
    """relu(conv(x) + bias) @ mix + mix_bias with stride 2: (B, H, W, C) -> (B, H', W', out), mix (hidden, out)."""
    if _few(weight) and mix.shape[1] <= _MOST_MIXED and kernels_apply(x, weight, bias, mix, mix_bias):
        from crispseg.ops.maps import convolution_kernels as kernels

        return kernels.halve_and_mix(x, weight, bias, mix, mix_bias)
    hidden = convolve(x, weight, bias, stride=2, relu=True)
    return torch.addmm(mix_bias, hidden.reshape(-1, hidden.shape[-1]), mix).view(*hidden.shape[:-1], -1)


def _few(weight: Tensor) -> bool:
    return weight.shape[1] <= _FEW and _is_3x3(weight)


def _is_3x3(weight: Tensor) -> bool:
    return weight.shape[2:] == (3, 3)
