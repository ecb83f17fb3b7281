"""Swin Transformer as a feature encoder for maps of any size. Layers are timm's; padding and shifting are done here.

The peers disagree on their order where a map is no multiple of the window. The Swin authors' dense models (DC-Swin,
AerialFormer) pad first and shift the padded map; timm (PyramidMamba) shifts first, and not at all along an axis that
fits into one window. Checkpoints give their authors' outputs only in their own order, so both are here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crispseg.layout import to_channels_first, to_channels_last
from crispseg.models.libraries import import_timm

PATCH = 4
MASKED = -100.0  # added to the logits between tokens that only meet because of the shift


# Others keep the merging between two stages in the first of them, timm in the second. Last first: none moves twice.
MERGING_NAMES = tuple((rf"\.layers\.{i}\.downsample\.", f".layers.{i + 1}.downsample.") for i in (2, 1, 0))


class SwinVariant(NamedTuple):
    timm_name: str
    width: int  # channels of the first stage; each next one has twice as many


TINY = SwinVariant("swin_tiny_patch4_window7_224", 96)
SMALL = SwinVariant("swin_small_patch4_window7_224", 96)
BASE = SwinVariant("swin_base_patch4_window7_224", 128)
BASE_WINDOW12 = SwinVariant("swin_base_patch4_window12_384", 128)


class Swin(nn.Module):
    """Four maps at strides 4, 8, 16, 32 (sizes rounded up), each through its own LayerNorm if `output_norms`."""

    def __init__(
        self, variant: SwinVariant, in_channels: int, drop_path: float, pad_first: bool, output_norms: bool
    ) -> None:
        super().__init__()
        model = import_timm().create_model(
            variant.timm_name, pretrained=False, in_chans=in_channels, num_classes=0, drop_path_rate=drop_path
        )
        self.patch_embed, self.layers = model.patch_embed, model.layers
        self.pad_first = pad_first
        self.output_norms = output_norms
        if output_norms:
            for i in range(4):
                self.add_module(f"norm{i}", nn.LayerNorm(variant.width * 2**i))

    def forward(self, image: Tensor) -> list[Tensor]:
        height, width = image.shape[-2:]
        image = F.pad(image, (0, missing(width, PATCH), 0, missing(height, PATCH)))
        x = self.patch_embed.norm(to_channels_last(self.patch_embed.proj(image)))  # (B, H, W, C)
        features = []
        for i, stage in enumerate(self.layers):
            x = self.run_stage(stage, x)
            out = getattr(self, f"norm{i}")(x) if self.output_norms else x
            features.append(to_channels_first(out))
        return features

    def run_stage(self, stage: Any, x: Tensor) -> Tensor:
        if not isinstance(stage.downsample, nn.Identity):
            x = stage.downsample(F.pad(x, (0, 0, 0, missing(x.shape[2], 2), 0, missing(x.shape[1], 2))))
        size = (x.shape[1], x.shape[2])
        window = int(stage.blocks[0].attn.window_size[0])
        shift = self.shift(size, window)
        mask = shift_mask(size, window, shift, x)
        for j, block in enumerate(stage.blocks):
            odd = j % 2 == 1
            attended = self.attend(block.attn, block.norm1(x), window, shift if odd else (0, 0), mask if odd else None)
            x = x + block.drop_path1(attended)
            x = x + block.drop_path2(block.mlp(block.norm2(x)))
        return x

    def shift(self, size: tuple[int, int], window: int) -> tuple[int, int]:
        rows, columns = (window // 2 if self.pad_first or n > window else 0 for n in size)
        return rows, columns

    def attend(
        self, attention: nn.Module, x: Tensor, window: int, shift: tuple[int, int], mask: Tensor | None
    ) -> Tensor:
        """Attention inside (shifted) windows of a map (B, H, W, C) of any size."""
        height, width = x.shape[1:3]
        padding = (0, 0, 0, missing(width, window), 0, missing(height, window))
        back = (-shift[0], -shift[1])
        x = roll(F.pad(x, padding), back) if self.pad_first else F.pad(roll(x, back), padding)
        windows = attention(partition(x, window), mask)
        x = assemble(windows, window, x.shape)
        return roll(x, shift)[:, :height, :width] if self.pad_first else roll(x[:, :height, :width], shift)


def missing(length: int, step: int) -> int:
    """What `length` lacks to the next multiple. With a size that is a symbol, sums and products of a quotient stay
    short where those of a remainder grow with every stage, until torch.export does not come back from them."""
    return (length + step - 1) // step * step - length


def roll(x: Tensor, shift: tuple[int, int]) -> Tensor:
    return x.roll(shift, dims=(1, 2)) if any(shift) else x


def partition(x: Tensor, window: int) -> Tensor:
    """(B, H, W, C) -> (B * windows, window^2, C); H and W are multiples of the window."""
    batch, height, width, channels = x.shape
    x = x.view(batch, height // window, window, width // window, window, channels)
    windows = batch * (height // window) * (width // window)  # as for `missing`: no -1 where a size may be a symbol
    return x.transpose(2, 3).reshape(windows, window * window, channels)


def assemble(windows: Tensor, window: int, shape: Sequence[int]) -> Tensor:
    """(B * windows, window^2, C) -> `shape`, (B, H, W, C)."""
    batch, height, width, channels = shape
    x = windows.view(batch, height // window, width // window, window, window, channels)
    return x.transpose(2, 3).reshape(batch, height, width, channels)


def shift_mask(size: tuple[int, int], window: int, shift: tuple[int, int], like: Tensor) -> Tensor | None:
    """(windows, window^2, window^2): 0 between tokens that were neighbours before the shift, -100 between others."""
    if not any(shift):
        return None
    rows, columns = (_regions(n + missing(n, window), window, s, like.device) for n, s in zip(size, shift, strict=True))
    regions = (3 * rows[:, None] + columns)[None, :, :, None]
    ids = partition(regions, window)[..., 0]
    apart = ids[:, None, :] != ids[:, :, None]
    return apart.to(like.dtype) * MASKED


def _regions(length: int, window: int, shift: int, device: torch.device) -> Tensor:
    """0 before the last window, 1 in the unshifted part of it, 2 where the shift brought in the other end."""
    index = torch.arange(length, device=device)
    if shift == 0:
        return torch.zeros_like(index)
    return (index >= length - window).long() + (index >= length - shift).long()
