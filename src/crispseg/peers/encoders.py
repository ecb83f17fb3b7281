"""Encoders that timm builds, with fresh weights: ResNet-18, EfficientNet-B3, ConvNeXt-B."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from crispseg.models.layers import BatchNorm2d
from crispseg.models.libraries import import_timm


def timm_features(name: str, in_channels: int, indices: tuple[int, ...], **options: Any) -> nn.Module:
    """timm's `name` as a module that maps an image to the list of its feature maps at `indices`."""
    encoder = import_timm().create_model(
        name, pretrained=False, features_only=True, in_chans=in_channels, out_indices=indices, **options
    )
    _allow_batch_of_one(encoder)
    return encoder


def resnet18(in_channels: int) -> nn.Module:
    """64, 128, 256 and 512 channels at strides 4, 8, 16, 32."""
    return timm_features("resnet18", in_channels, (1, 2, 3, 4))


def efficientnet_b3(in_channels: int) -> nn.Module:
    """32, 48, 136 and 384 channels at strides 4, 8, 16, 32."""
    return timm_features("efficientnet_b3", in_channels, (1, 2, 3, 4))


def convnext_base(in_channels: int, drop_path: float) -> nn.Module:
    """128, 256, 512 and 1024 channels at strides 4, 8, 16, 32 (sizes rounded down)."""
    return timm_features("convnext_base", in_channels, (0, 1, 2, 3), drop_path_rate=drop_path)


class NormAct(BatchNorm2d):
    """BatchNorm and an activation under one name, as timm's EfficientNet wants it."""

    def __init__(self, num_features: int, eps: float, momentum: float | None, act: nn.Module) -> None:
        super().__init__(num_features, eps, momentum)
        self.act = act

    def forward(self, input: Tensor, relu: bool = False) -> Tensor:
        return self.act(super().forward(input, relu))

    def once_folded(self) -> nn.Module:
        return self.act


def _allow_batch_of_one(encoder: nn.Module) -> None:
    """Exchange timm's BatchNorms for ours, which also train on one value per channel."""
    for parent in list(encoder.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                settings = (child.num_features, child.eps, child.momentum)
                act = getattr(child, "act", None)
                ours = BatchNorm2d(*settings) if act is None else NormAct(*settings, act)
                ours.load_state_dict(child.state_dict())  # keeps timm's initialisation
                setattr(parent, name, ours)
