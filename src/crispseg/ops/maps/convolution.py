"""3x3 convolutions of channels-last maps with what follows them. Inference only.

Kernels are for few channels. Weights are torch's (out, in, 3, 3), best stored channels last: the kernels read them as
they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.dispatch import A100, ANY_GPU, HALF, kernels_wanted, operator, too_many, why_no_room

_FEW = 48  # channels up to which a program holds the weights; cuDNN is fast where there are more
_MOST_BANDS = 16
_MOST_MIXED = 128  # channels of a result whose sums a program holds
_IMAGES = (torch.float32, torch.bfloat16, torch.float16, torch.uint8)


@operator("convolve", gradients="none", room=ANY_GPU)
def convolve(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None = None, relu: bool = False, stride: int = 1
) -> Tensor:
    """A convolution of x (B, H, W, C) with "same" padding, its bias, residual and ReLU.

    With many channels these are further passes, or, where torch has cuDNN do all, a summand of weight zero. Left to
    itself torch would take the unwritten output for that, and what was in that memory may not have been finite.
    """
    channels_first, padding = x.permute(0, 3, 1, 2), weight.shape[-1] // 2
    same_shape = stride == 1 and weight.shape[0] == x.shape[3]
    plain = relu and residual is None and same_shape and not torch.is_grad_enabled()
    if plain and x.is_cuda and x.dtype in HALF and kernels_wanted():
        y = torch.cudnn_convolution_add_relu(
            channels_first, weight, channels_first, 0.0, bias, (1, 1), (padding, padding), (1, 1), 1
        )
        return y.permute(0, 2, 3, 1)
    y = functional.conv2d(channels_first, weight, None, stride, padding).permute(0, 2, 3, 1).add_(bias)
    y = y if residual is None else y.add_(residual)
    return y.relu_() if relu else y


@convolve.unless
def _(x: Tensor, weight: Tensor, *rest: Any, stride: int = 1, **options: Any) -> str | None:
    why = "stride 2" if stride != 1 else _too_many_channels(weight) or too_many(len(weight), _FEW, "channels")
    return why or (why_no_room(x.device, A100) if weight.shape[1] > 32 else None)  # 142 KB with 48 channels


@operator("convolve_image", gradients="none", room=ANY_GPU, of=lambda image, weight, bias: (weight, bias))
def convolve_image(image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(conv + bias) with stride 2 of an image (B, bands, H, W) of any type and layout, cast to the weights' type:
    a map (B, H', W', C)."""
    image = image.to(weight.dtype, memory_format=torch.channels_last)
    return convolve(image.permute(0, 2, 3, 1), weight, bias, stride=2, relu=True)


@convolve_image.unless
def _(image: Tensor, weight: Tensor, bias: Tensor) -> str | None:
    if not _is_3x3(weight) or image.dtype not in _IMAGES or image.device != weight.device:
        return "not a usual image, or not 3x3"
    return too_many(image.shape[1], _MOST_BANDS, "bands") or too_many(len(weight), _MOST_MIXED, "channels")


@operator("halve_and_mix", gradients="none", room=A100)
def halve_and_mix(x: Tensor, weight: Tensor, bias: Tensor, mix: Tensor, mix_bias: Tensor) -> Tensor:
    """relu(conv(x) + bias) @ mix + mix_bias with stride 2: (B, H, W, C) -> (B, H', W', out), mix (hidden, out)."""
    hidden = convolve(x, weight, bias, stride=2, relu=True)
    return torch.addmm(mix_bias, hidden.reshape(-1, hidden.shape[-1]), mix).view(*hidden.shape[:-1], -1)


@halve_and_mix.unless
def _(x: Tensor, weight: Tensor, bias: Tensor, mix: Tensor, mix_bias: Tensor) -> str | None:
    return _too_many_channels(weight) or too_many(mix.shape[1], _MOST_MIXED, "channels of the result")


def _too_many_channels(weight: Tensor) -> str | None:
    return too_many(weight.shape[1], _FEW, "channels") if _is_3x3(weight) else "not 3x3"


def _is_3x3(weight: Tensor) -> bool:
    return weight.shape[2:] == (3, 3)
