"""ResT-Lite (Zhang and Yang, 2021), BANet's encoder: attention to a map reduced by depthwise convolution."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from crispseg.models.layers import BatchNorm2d
from crispseg.ops.common.precision import sum_dtype, without_autocast
from crispseg.peers.blocks import conv, small_normal

WIDTHS = (64, 128, 256, 512)
HEADS = (1, 2, 4, 8)
REDUCTIONS = (8, 4, 2, 1)
BLOCKS = 2


class PixelAttention(nn.Module):
    """x * sigmoid(depthwise 3 x 3 of x): ResT's position code."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pa_conv = conv(channels, channels, 3, groups=channels, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.pa_conv(x).sigmoid()


class Stem(nn.Module):
    """Image to 64 channels at stride 4."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.conv1, self.norm1 = conv(in_channels, half, 3, stride=2), BatchNorm2d(half)
        self.conv2, self.norm2 = conv(half, half, 3), BatchNorm2d(half)
        self.conv3 = conv(half, channels, 3, stride=2)
        self.pos = PixelAttention(channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.conv1(x)).relu()
        x = self.norm2(self.conv2(x)).relu()
        return self.pos(self.conv3(x))


class PatchEmbed(nn.Module):
    """Half the size, twice the channels."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.conv = conv(in_channels, channels, 3, stride=2, bias=True)
        self.norm = BatchNorm2d(channels)
        self.pos = PixelAttention(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.pos(self.norm(self.conv(x)))


class EfficientAttention(nn.Module):
    """Multi-head attention from every pixel to a map reduced `reduction` times.

    With several heads the logits are mixed across heads, and each head's whole attention map is standardised after the
    softmax (so its rows no longer sum to one).
    """

    def __init__(self, channels: int, heads: int, reduction: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(channels, channels)
        self.kv = nn.Linear(channels, 2 * channels)
        self.proj = nn.Linear(channels, channels)
        if reduction > 1:
            self.sr = nn.Conv2d(channels, channels, reduction + 1, reduction, padding=reduction // 2, groups=channels)
            self.sr_norm = nn.LayerNorm(channels)
        self.reduction = reduction
        self.transform_conv = nn.Conv2d(heads, heads, 1) if heads > 1 else None

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        query = self.split_heads(self.q(x))  # (B, heads, N, d)
        key, value = map(self.split_heads, self.kv(self.reduce(x, size)).chunk(2, dim=-1))
        attention = attention_map(query, key, self.transform_conv).to(value.dtype)
        return self.proj((attention @ value).transpose(1, 2).flatten(2))  # (B, N, C)

    def split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)  # (B, N, C) -> (B, heads, N, d)

    def reduce(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        if self.reduction == 1:
            return x
        reduced = self.sr(x.transpose(1, 2).unflatten(2, size))  # (B, C, h, w)
        return self.sr_norm(reduced.flatten(2).transpose(1, 2))


@without_autocast
def attention_map(query: Tensor, key: Tensor, mix: nn.Conv2d | None) -> Tensor:
    """(B, heads, N, n). In float32: standardising blows up what half precisions round off."""
    exact = sum_dtype(query.dtype)
    logits = query.to(exact) @ key.to(exact).transpose(-2, -1) * query.shape[-1] ** -0.5
    if mix is None:
        return logits.softmax(dim=-1)
    assert mix.bias is not None
    attention = F.conv2d(logits, mix.weight.to(exact), mix.bias.to(exact)).softmax(dim=-1)
    # InstanceNorm in the paper; LayerNorm over both axes is the same, and takes a 1 x 1 map too
    return F.layer_norm(attention, attention.shape[-2:])


class Mlp(nn.Module):
    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(channels, hidden)
        self.fc2 = nn.Linear(hidden, channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, channels: int, heads: int, reduction: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(channels)
        self.attn = EfficientAttention(channels, heads, reduction)
        self.norm2 = nn.LayerNorm(channels)
        self.mlp = Mlp(channels, 4 * channels)

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        x = x + self.attn(self.norm1(x), size)
        return x + self.mlp(self.norm2(x))


class ResTLite(nn.Module):
    """Maps an image to stage 3 (stride 16, 256 channels) and stage 4 (stride 32, 512 channels, normalised)."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.stem = Stem(in_channels, WIDTHS[0])
        self.patch_embed_2 = PatchEmbed(WIDTHS[0], WIDTHS[1])
        self.patch_embed_3 = PatchEmbed(WIDTHS[1], WIDTHS[2])
        self.patch_embed_4 = PatchEmbed(WIDTHS[2], WIDTHS[3])
        self.stage1, self.stage2, self.stage3, self.stage4 = (
            nn.ModuleList(Block(width, heads, reduction) for _ in range(BLOCKS))
            for width, heads, reduction in zip(WIDTHS, HEADS, REDUCTIONS, strict=True)
        )
        self.norm = nn.LayerNorm(WIDTHS[3])
        self.apply(small_normal)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = run_stage(self.stage1, self.stem(x))
        x = run_stage(self.stage2, self.patch_embed_2(x))
        stride16 = run_stage(self.stage3, self.patch_embed_3(x))
        stride32 = run_stage(self.stage4, self.patch_embed_4(stride16), self.norm)
        return stride16, stride32


def run_stage(blocks: nn.ModuleList, x: Tensor, norm: nn.Module | None = None) -> Tensor:
    size = (x.shape[-2], x.shape[-1])
    tokens = x.flatten(2).transpose(1, 2)  # (B, C, H, W) -> (B, N, C)
    for block in blocks:
        tokens = block(tokens, size)
    if norm is not None:
        tokens = norm(tokens)
    return tokens.transpose(1, 2).unflatten(2, size)
