"""VSSD for evaluation: eight to ten kernels per block, weights packed for them.

Maps are channels last, (B, H, W, C). The residual stream is one tensor per half block that products add into.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from crispseg.fused.layers import FusedNorm, Packed, Product, aligned, channels_last, linear_gelu, padded
from crispseg.models.layers import to_channels_first
from crispseg.models.vssd import VSSD, AttentionMixer, Block, Downsample, NCSSDMixer, Stem
from crispseg.ops.block import MLP, Start, conv_norm_mlp, conv_norm_project, mlp_takes
from crispseg.ops.convolution import convolve, convolve_image, halve_and_mix
from crispseg.ops.depthwise import depthwise3x3, depthwise3x3_norm, packed
from crispseg.ops.gated import gated_mixer
from crispseg.ops.spec import Gates, sum_dtype

# A hidden unit of the MLP that is always this value carries the second product's bias, so that the product can add
# into the residual. GELU leaves 8 as it is, and dividing by a power of two costs the bias no digits.
_CONSTANT = 8.0


class FusedMixer(Packed):
    """NC-SSD with DCO between two products, after a block's `start`; gives the residual with its result added."""

    project: Tensor  # (C, z | xBC | dt, padded)
    convolution: Tensor
    convolution_bias: Tensor
    norm_weight: Tensor
    norm_bias: Tensor
    out: Tensor  # (inner, C)
    dt_bias: Tensor
    a_log: Tensor
    d: Tensor

    def __init__(self, mixer: NCSSDMixer, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, self.inner, self.state = mixer.heads, mixer.heads * mixer.head_width, mixer.state
        self.rule, self.eps = mixer.rule, mixer.norm.eps
        width = mixer.in_proj.weight.shape[0]
        assert mixer.conv2d.bias is not None
        self.keep(
            dtype,
            project=padded(mixer.in_proj.weight, aligned(width)).t(),
            convolution=packed(mixer.conv2d.weight),
            convolution_bias=mixer.conv2d.bias,
            norm_weight=mixer.norm.weight,
            norm_bias=mixer.norm.bias,
            out=mixer.out_proj.weight.t(),
        )
        self.keep(sum_dtype(dtype), dt_bias=mixer.dt_bias, a_log=mixer.A_log, d=mixer.D)
        self.keep(sum_dtype(dtype), **{f"gate_{name}": gate for name, gate in mixer.gates()._asdict().items()})

    def forward(self, x: Tensor, start: Start) -> Tensor:
        mixed = self.inner + 2 * self.state
        residual, projected = conv_norm_project(x, start, self.project)
        z, xbc, dt, _ = projected.split(
            [self.inner, mixed, self.heads, projected.shape[-1] - self.inner - mixed - self.heads], dim=-1
        )
        xbc = depthwise3x3(xbc, self.convolution, self.convolution_bias, activation="silu")
        y = gated_mixer(
            xbc.flatten(1, 2),  # (B, L, inner + 2N), likewise the others
            dt.flatten(1, 2),
            z.flatten(1, 2),
            self.dt_bias,
            self.a_log,
            self.d,
            Gates(*(getattr(self, f"gate_{name}") for name in Gates._fields)),
            self.rule,
            self.norm_weight,
            self.norm_bias,
            self.eps,
        )
        residual.view(-1, x.shape[-1]).addmm_(y.view(-1, self.inner), self.out)
        return residual


class FusedAttention(nn.Module):
    """The public VSSD's fourth stage, likewise."""

    def __init__(self, mixer: AttentionMixer, dtype: torch.dtype) -> None:
        super().__init__()
        self.mixer = mixer.to(dtype)

    def forward(self, x: Tensor, start: Start) -> Tensor:
        residual, normed = depthwise3x3_norm(x, *start)
        return residual.add_(self.mixer(normed))


class FusedBlock(Packed):
    conv1: Tensor
    bias1: Tensor
    conv2: Tensor
    bias2: Tensor
    norm1: Tensor
    shift1: Tensor
    norm2: Tensor
    shift2: Tensor
    fc1: Tensor  # (C, hidden and the constant, padded)
    fc1_bias: Tensor
    fc2: Tensor  # (hidden and the constant, padded, C)
    fc2_bias: Tensor

    def __init__(self, block: Block, dtype: torch.dtype) -> None:
        super().__init__()
        mixer = block.attn
        self.mixer = FusedMixer(mixer, dtype) if isinstance(mixer, NCSSDMixer) else FusedAttention(mixer, dtype)  # type: ignore[arg-type]
        self.eps1, self.eps2 = block.norm1.eps, block.norm2.eps
        fc1, fc2 = block.mlp.fc1, block.mlp.fc2
        self.hidden = hidden = fc1.weight.shape[0]
        wider = aligned(hidden + 1)
        constant = torch.full((1,), _CONSTANT, dtype=fc1.bias.dtype)
        second = torch.cat([fc2.weight, fc2.bias[:, None] / _CONSTANT], dim=1)  # (C, hidden + 1)
        self.keep(
            dtype,
            conv1=packed(block.cpe1.weight),
            bias1=block.cpe1.bias,
            conv2=packed(block.cpe2.weight),
            bias2=block.cpe2.bias,
            norm1=block.norm1.weight,
            shift1=block.norm1.bias,
            norm2=block.norm2.weight,
            shift2=block.norm2.bias,
            fc1=padded(fc1.weight, wider).t(),
            fc1_bias=padded(torch.cat([fc1.bias, constant]), wider),
            fc2=functional.pad(second, (0, wider - hidden - 1)).t(),
            fc2_bias=fc2.bias,
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.mixer(x, Start(self.conv1, self.bias1, self.norm1, self.shift1, self.eps1))
        return self._mlp(x, Start(self.conv2, self.bias2, self.norm2, self.shift2, self.eps2))

    def _mlp(self, x: Tensor, start: Start) -> Tensor:
        """One kernel, which adds the second bias itself and does without the constant, or three."""
        channels, hidden = x.shape[-1], self.hidden
        if mlp_takes(x, hidden):
            mlp = MLP(self.fc1[:, :hidden], self.fc1_bias[:hidden], self.fc2[:hidden], self.fc2_bias)
            return conv_norm_mlp(x, start, mlp)
        x, normed = depthwise3x3_norm(x, *start)
        units = linear_gelu(normed.view(-1, channels), self.fc1, self.fc1_bias)
        x.view(-1, channels).addmm_(units, self.fc2)
        return x


class FusedStem(Packed):
    """Image (B, bands, H, W) of any type and layout -> (B, h, w, C)."""

    def __init__(self, stem: Stem, dtype: torch.dtype) -> None:
        super().__init__()
        layers = (stem.conv1, *stem.conv2, stem.conv3[0])
        self.count = len(layers)
        for i, layer in enumerate(layers):
            conv = layer.conv
            self.keep(dtype, **{f"weight{i}": channels_last(conv.weight), f"bias{i}": conv.bias})
        self.last = Product.of(stem.conv3[1].conv, dtype)

    def forward(self, image: Tensor) -> Tensor:
        (w0, b0), (w1, b1), (w2, b2), (w3, b3) = (
            (getattr(self, f"weight{i}"), getattr(self, f"bias{i}")) for i in range(self.count)
        )
        x = convolve_image(image, w0, b0)
        x = convolve(convolve(x, w1, b1, relu=True), w2, b2, residual=x)
        return halve_and_mix(x, w3, b3, self.last.weight, self.last.bias)


class FusedDownsample(Packed):
    weight: Tensor
    bias: Tensor

    def __init__(self, downsample: Downsample, dtype: torch.dtype) -> None:
        super().__init__()
        convolutions: list[Any] = [layer.conv for layer in downsample.conv]
        expand, middle, reduce = convolutions
        self.expand = Product.of(expand, dtype, relu=True)
        self.keep(dtype, weight=packed(middle.weight), bias=middle.bias)
        self.reduce = Product.of(reduce, dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = depthwise3x3(self.expand(x), self.weight, self.bias, activation="relu", stride=2)
        return self.reduce(x)


class FusedVSSD(nn.Module):
    """Image (B, bands, H, W) -> four feature maps (B, C, h, w), as VSSD's. Takes a backbone whose BatchNorms are
    folded."""

    def __init__(self, backbone: VSSD, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.stem = FusedStem(backbone.patch_embed, dtype)
        stages: list[Any] = list(backbone.layers)
        self.blocks = nn.ModuleList(
            nn.Sequential(*(FusedBlock(block, dtype) for block in stage.blocks)) for stage in stages
        )
        self.downsamples = nn.ModuleList(FusedDownsample(stage.downsample, dtype) for stage in stages[:3])
        self.norms = nn.ModuleList(FusedNorm(getattr(backbone, f"outnorm{i}"), dtype) for i in range(len(stages)))

    def forward(self, image: Tensor) -> list[Tensor]:
        return [to_channels_first(norm(x)) for norm, x in zip(self.norms, self.maps(image), strict=True)]

    def maps(self, image: Tensor) -> Iterator[Tensor]:
        """Each stage's map (B, h, w, C) as it is done, before its norm."""
        x = self.stem(image)
        for i, blocks in enumerate(self.blocks):
            x = blocks(self.downsamples[i - 1](x) if i else x)
            yield x
