"""D2LS (Zou et al., 2025): ConvNeXt-B, and a dictionary of class tokens adapted to the image at hand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crispseg.layout import to_channels_first, to_channels_last
from crispseg.models.base import Output
from crispseg.models.layers import resize
from crispseg.peers.base import Peer, read_options
from crispseg.peers.blocks import conv, crop_like
from crispseg.peers.encoders import convnext_base

WIDTHS = (128, 256, 512, 1024)  # ConvNeXt-B
DIM = 256
CANDIDATES = 4  # dictionary entries a class may be mixed from
HEADS = 8
STRIDE, SMALLEST = 4, 32  # the encoder rounds sizes down at each step; smaller images would vanish


@dataclasses.dataclass(frozen=True)
class D2LSConfig:
    layers: int = 3  # of the interactor
    drop_path: float = 0.5


class Attention(nn.Module):
    """Multi-head attention with separate queries, keys and values, of a narrower width inside."""

    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(dim, inner) for _ in range(3))
        self.out_proj = nn.Linear(inner, dim)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        query, key, value = (
            projection(x).unflatten(2, (HEADS, -1)).transpose(1, 2)  # (B, heads, n, d)
            for projection, x in ((self.q_proj, q), (self.k_proj, k), (self.v_proj, v))
        )
        weights = (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(dim=-1)
        return self.out_proj((weights @ value).transpose(1, 2).flatten(2))


class UnusedMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(DIM, 8 * DIM), nn.Linear(8 * DIM, DIM)


class InteractionLayer(nn.Module):
    """Tokens look at pixels, then pixels at tokens; LayerNorm after each."""

    def __init__(self) -> None:
        super().__init__()
        self.cross_attn_token_to_image = Attention(DIM, DIM // 2)
        self.norm2 = nn.LayerNorm(DIM)
        self.cross_attn_image_to_token = Attention(DIM, DIM // 2)
        self.norm4 = nn.LayerNorm(DIM)
        # The authors' layer also owns these four and never runs them. They are kept for the parameter count and the
        # checkpoints, without gradient, so that distributed training does not wait for one.
        self.self_attn, self.norm1 = Attention(DIM, DIM), nn.LayerNorm(DIM)
        self.mlp, self.norm3 = UnusedMlp(), nn.LayerNorm(DIM)
        for unused in (self.self_attn, self.norm1, self.mlp, self.norm3):
            unused.requires_grad_(False)

    def forward(self, tokens: Tensor, pixels: Tensor, token_code: Tensor, code: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.norm2(tokens + self.cross_attn_token_to_image(tokens + token_code, pixels + code, pixels))
        pixels = self.norm4(pixels + self.cross_attn_image_to_token(pixels + code, tokens + token_code, tokens))
        return tokens, pixels


class Interactor(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(InteractionLayer() for _ in range(layers))
        self.final_attn_token_to_image = Attention(DIM, DIM // 2)
        self.norm_final_attn = nn.LayerNorm(DIM)

    def forward(self, tokens: Tensor, pixels: Tensor, code: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (B, K, 256) and pixels (B, N, 256), refined; the tokens' start is their position code throughout."""
        start = tokens
        for layer in self.layers:
            tokens, pixels = layer(tokens, pixels, start, code)
        attended = self.final_attn_token_to_image(tokens + start, pixels + code, pixels)
        return self.norm_final_attn(tokens + attended), pixels


class Dictionary(nn.Module):
    """One embedding per class, and its four candidate variations."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.basic_queries = nn.Embedding(num_classes, DIM)
        self.token_mlp = nn.Linear(DIM, CANDIDATES * DIM)

    def static(self, batch: int) -> Tensor:
        return self.basic_queries.weight.expand(batch, -1, -1)  # (B, K, 256)

    def dynamic(self, weights: Tensor) -> Tensor:
        """Entry k is the mean of its candidates, weighted by the image: (B, K, 4) -> (B, K, 256)."""
        candidates = self.token_mlp(self.basic_queries.weight).unflatten(1, (CANDIDATES, DIM))
        return torch.einsum("bkj,kjd->bkd", weights, candidates)


class Projection(nn.Module):
    """A linear map of every pixel, (B, C, H, W) -> (B, 256, H, W)."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.proj = nn.Linear(in_channels, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return to_channels_first(self.proj(to_channels_last(x)))


class Modulator(nn.Module):
    """How much of each candidate each class takes, from the deepest map: (B, K, 4), each row summing to one."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        half = DIM // 2
        self.mlp1 = Projection(WIDTHS[-1])
        self.gmp_branch = nn.Sequential(nn.AdaptiveMaxPool2d(1), conv(half, half, 1, bias=True))
        self.gap_branch = nn.Sequential(nn.AdaptiveAvgPool2d(1), conv(half, half, 1, bias=True))
        self.mlp2 = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, CANDIDATES * num_classes))

    def forward(self, deepest: Tensor) -> Tensor:
        first, second = self.mlp1(deepest).chunk(2, dim=1)
        pooled = torch.cat([self.gmp_branch(first), self.gap_branch(second)], dim=1).flatten(1)
        return self.mlp2(pooled).unflatten(1, (-1, CANDIDATES)).softmax(dim=-1)


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of each pixel."""

    def forward(self, input: Tensor) -> Tensor:
        return to_channels_first(super().forward(to_channels_last(input)))


class HyperNetwork(nn.Module):
    """A refined class token to that class's 16 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM // 16)])

    def forward(self, x: Tensor) -> Tensor:
        first, second, last = self.layers
        return last(second(first(x).relu()).relu())


class Decoder(nn.Module):
    def __init__(self, num_classes: int, layers: int) -> None:
        super().__init__()
        self.token = Dictionary(num_classes)
        self.feature_modulator = Modulator(num_classes)
        self.interactor = Interactor(layers)
        self.upsampler = nn.Sequential(
            nn.PixelShuffle(2), ChannelNorm(DIM // 4, eps=1e-6), nn.GELU(), nn.PixelShuffle(2), nn.GELU()
        )
        self.output_hypernetwork_mlps = HyperNetwork()

    def forward(self, pixels: Tensor, code: Tensor, deepest: Tensor) -> Tensor | Output:
        """Logits at four times the size of `pixels`; in training also those of the static dictionary."""
        logits = self.match(self.token.dynamic(self.feature_modulator(deepest)), pixels, code)
        if not self.training:
            return logits
        return Output(logits, (self.match(self.token.static(len(pixels)), pixels, code),))

    def match(self, tokens: Tensor, pixels: Tensor, code: Tensor) -> Tensor:
        flat = pixels.flatten(2).transpose(1, 2)  # (B, 256, h, w) -> (B, h w, 256)
        tokens, flat = self.interactor(tokens, flat, code)
        fine = self.upsampler(flat.transpose(1, 2).unflatten(2, pixels.shape[-2:]))  # (B, 16, H, W)
        return torch.einsum("bkc,bchw->bkhw", self.output_hypernetwork_mlps(tokens), fine)


class FourierPosition(nn.Module):
    """Fixed random Fourier features of the pixel centres."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positional_encoding_gaussian_matrix", torch.randn(2, DIM // 2))
        self.positional_encoding_gaussian_matrix: Tensor

    def forward(self, height: int, width: int) -> Tensor:
        """(h w, 256), row by row."""
        matrix = self.positional_encoding_gaussian_matrix
        x, y = (2 * (torch.arange(n, device=matrix.device) + 0.5) / n - 1 for n in (width, height))
        angle = x[:, None] * matrix[0] + y[:, None, None] * matrix[1]  # (h, w, 128)
        angle = 2 * math.pi * angle.flatten(0, 1)
        return torch.cat([angle.sin(), angle.cos()], dim=-1).to(matrix.dtype)


class D2LS(Peer):
    authors_names = (  # torchvision's ConvNeXt to timm's
        (r"^backbone\.0\.0\.([01])\.", r"backbone.stem_\1."),
        *((rf"^backbone\.0\.{2 * i}\.", f"backbone.stages_{i}.downsample.") for i in (1, 2, 3)),
        *((rf"^backbone\.0\.{2 * i + 1}\.", f"backbone.stages_{i}.blocks.") for i in (0, 1, 2, 3)),
        (r"\.layer_scale$", ".gamma"),
        (r"\.block\.0\.", ".conv_dw."),
        (r"\.block\.2\.", ".norm."),
        (r"\.block\.3\.", ".mlp.fc1."),
        (r"\.block\.5\.", ".mlp.fc2."),
    )

    def __init__(self, num_classes: int, in_channels: int, options: D2LSConfig) -> None:
        super().__init__()
        self.backbone = convnext_base(in_channels, options.drop_path)
        self.pe_layer = FourierPosition()
        self.linear_c = nn.ModuleList(Projection(width) for width in WIDTHS)
        self.aggregator = conv(len(WIDTHS) * DIM, DIM, 1)
        self.decoder = Decoder(num_classes, options.layers)

    def forward(self, x: Tensor) -> Tensor | Output:
        features = self.backbone(pad_for_encoder(x))
        pixels = self.neck(features)
        out = self.decoder(pixels, self.pe_layer(*pixels.shape[-2:]), features[-1])
        if isinstance(out, Output):
            return Output(crop_like(out.logits, x), tuple(crop_like(a, x) for a in out.aux))
        return crop_like(out, x)

    def neck(self, features: list[Tensor]) -> Tensor:
        size = features[0].shape[-2:]
        maps = [resize(project(f), size) for project, f in zip(self.linear_c, features, strict=True)]
        return self.aggregator(torch.cat(maps[::-1], dim=1))  # deepest first

    def from_authors(self, name: str, tensor: Tensor) -> Tensor:
        return tensor.flatten() if name.endswith(".gamma") else tensor  # (C, 1, 1) in torchvision


def pad_for_encoder(x: Tensor) -> Tensor:
    """Repeat the last row and column up to a multiple of 4, and to no less than 32."""
    right, bottom = (max(n + -n % STRIDE, SMALLEST) - n for n in (x.shape[-1], x.shape[-2]))
    return F.pad(x, (0, right, 0, bottom), mode="replicate")


def build(num_classes: int, in_channels: int, options: Mapping[str, Any]) -> D2LS:
    return D2LS(num_classes, in_channels, read_options(D2LSConfig, options))
