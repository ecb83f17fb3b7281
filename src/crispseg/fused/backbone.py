"""VSSD for evaluation: some ten kernels per block, weights packed for them.

Maps are channels last, (B, H, W, C). The residual stream is one tensor per half block that products add into.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from crispseg.fused.layers import FusedNorm, Kept, Packed, Product, Ready, aligned, channels_last, linear_gelu, padded
from crispseg.fused.onednn_mixer import OneDNNMixer, rows
from crispseg.fused.stages import StageMaps
from crispseg.ops.common.precision import sum_dtype
from crispseg.ops.cpu import onednn
from crispseg.ops.infer.block import MLP, Start, conv_norm_mlp, conv_norm_project
from crispseg.ops.infer.gated_mixer import Mixing, gated_mixer
from crispseg.ops.maps.convolution import convolve, convolve_image, halve_and_mix
from crispseg.ops.maps.depthwise import depthwise3x3, packed
from crispseg.ops.maps.normalize import layer_norm

if TYPE_CHECKING:
    from crispseg.models.vssd import VSSD, AttentionMixer, Block, Downsample, NCSSDMixer, Stem

# A hidden unit of the MLP that is always this value carries the second product's bias, so that the product can add
# into the residual. GELU leaves 8 as it is, and dividing by a power of two costs the bias no digits.
_CONSTANT = 8.0


class FusedMixer(Packed, Ready):
    """NC-SSD with DCO between two products, after a block's `start`; gives the residual with its result added."""

    project: Tensor  # (C, z | xBC | dt, padded)
    convolution: Tensor
    convolution_bias: Tensor
    out: Tensor  # (inner, C)

    def __init__(self, mixer: NCSSDMixer, dtype: torch.dtype) -> None:
        super().__init__()
        self.selection = None if mixer.selection is None else mixer.selection.to(dtype)
        width = mixer.in_proj.weight.shape[0]
        assert mixer.conv2d.bias is not None
        self.keep(
            dtype,
            project=padded(mixer.in_proj.weight, aligned(width)).t(),
            convolution=packed(mixer.conv2d.weight),
            convolution_bias=mixer.conv2d.bias,
            out=mixer.out_proj.weight.t(),
        )
        mixing: Any = mixer.mixing(mixer.gates())
        self.mixing: Kept[Mixing] = Kept(mixing._replace(norm=FusedNorm(mixer.norm, dtype)), sum_dtype(dtype))

    def make_ready(self) -> OneDNNMixer:
        mixing = self.mixing.packed()
        z, xbc, dt = mixing.split(self.project, len(self.convolution))
        project, gate, out = (onednn.Linear.of(matrix.t()) for matrix in (xbc, z, self.out))
        gains = onednn.Linear.of(dt.t())
        convolution = onednn.Convolution.of(
            self.convolution, self.convolution_bias, (1, 1), groups=xbc.shape[1], activation="swish"
        )
        rate, least, residual = mixing.a_log.exp(), torch.zeros_like(mixing.a_log), mixing.gates.residual
        if residual is not None and mixing.rule.residual_folds:  # into the gain, see `crispseg.ops.nc_ssd.formula`
            rate, least = (1 - residual) * rate, residual
            mixing = mixing._replace(gates=mixing.gates._replace(residual=None))
        return OneDNNMixer(project, gains, gate, out, convolution, least, rate, mixing, self.selection)

    def add_to(self, residual: Tensor, normed: Tensor) -> Tensor:
        """After the start, where oneDNN's products are taken."""
        mixer: OneDNNMixer = self.ready()
        return mixer.add_to(residual, normed)

    def forward(self, x: Tensor, start: Start) -> Tensor:
        residual, projected = conv_norm_project(x, start, self.project)
        mixing = self.mixing.packed()
        z, xbc, dt = mixing.split(projected, len(self.convolution))
        xbc = depthwise3x3(xbc, self.convolution, self.convolution_bias, activation="silu")
        xbc, dt, z = (part.flatten(1, 2) for part in (xbc, dt, z))  # (B, L, inner + 2N), (B, L, H), (B, L, inner)
        if self.selection is not None:
            _, b, c = mixing.tokens(xbc)
            for part, scaled in zip((b, c), self.selection(b, c), strict=True):
                part.copy_(scaled)
        y = gated_mixer(xbc, dt, z, mixing)
        residual.view(-1, x.shape[-1]).addmm_(y.view(-1, y.shape[-1]), self.out)
        return residual


class FusedAttention(nn.Module):
    """The public VSSD's fourth stage, likewise."""

    def __init__(self, mixer: AttentionMixer, dtype: torch.dtype) -> None:
        super().__init__()
        self.mixer = mixer.to(dtype)

    def forward(self, x: Tensor, start: Start) -> Tensor:
        return self.add_to(*start(x))

    def add_to(self, residual: Tensor, normed: Tensor) -> Tensor:
        return residual.add_(self.mixer(normed))


class FusedBlock(Packed, Ready):
    fc1: Tensor  # (C, hidden and the constant, padded)
    fc1_bias: Tensor
    fc2: Tensor  # (hidden and the constant, padded, C)
    fc2_bias: Tensor

    def __init__(self, block: Block, dtype: torch.dtype) -> None:
        super().__init__()
        self.mixer = block.attn.in_fused_block(dtype)
        self.start1 = Kept(_start(block.cpe1, block.norm1), dtype)
        self.start2 = Kept(_start(block.cpe2, block.norm2), dtype)
        fc1, fc2 = block.mlp.fc1, block.mlp.fc2
        self.hidden = hidden = fc1.weight.shape[0]
        wider = aligned(hidden + 1)
        constant = torch.full((1,), _CONSTANT, dtype=fc1.bias.dtype)
        second = torch.cat([fc2.weight, fc2.bias[:, None] / _CONSTANT], dim=1)  # (C, hidden + 1)
        self.keep(
            dtype,
            fc1=padded(fc1.weight, wider).t(),
            fc1_bias=padded(torch.cat([fc1.bias, constant]), wider),
            fc2=functional.pad(second, (0, wider - hidden - 1)).t(),
            fc2_bias=fc2.bias,
        )

    def make_ready(self) -> tuple[Any, ...]:
        """The two convolutions, in which the residual is one more weight, and the MLP's products, which do without the
        constant."""
        hidden = self.hidden
        return (
            _with_residual(self.start1.packed()),
            _with_residual(self.start2.packed()),
            onednn.Linear.of(self.fc1[:, :hidden].t(), self.fc1_bias[:hidden], "gelu"),
            onednn.Linear.of(self.fc2[:hidden].t(), self.fc2_bias),
        )

    def forward(self, x: Tensor) -> Tensor:
        start1, start2 = self.start1.packed(), self.start2.packed()
        if onednn.applies(x):
            return self._by_onednn(x, start1, start2)
        return self._mlp(self.mixer(x, start1), start2)

    def _by_onednn(self, x: Tensor, start1: Start, start2: Start) -> Tensor:
        conv1, conv2, fc1, fc2 = self.ready()
        x = conv1(x)
        x = conv2(self.mixer.add_to(x, layer_norm(x, *start1[2:])))
        return fc2.added_to(rows(x), fc1(rows(layer_norm(x, *start2[2:])))).view_as(x)

    def _mlp(self, x: Tensor, start: Start) -> Tensor:
        """One kernel, which adds the second bias itself and does without the constant, or three."""
        channels, hidden = x.shape[-1], self.hidden
        mlp = MLP(self.fc1[:, :hidden], self.fc1_bias[:hidden], self.fc2[:hidden], self.fc2_bias)
        if conv_norm_mlp.takes(x, start, mlp):
            return conv_norm_mlp(x, start, mlp)
        x, normed = start(x)
        units = linear_gelu(normed.view(-1, channels), self.fc1, self.fc1_bias)
        x.view(-1, channels).addmm_(units, self.fc2)
        return x


def _start(conv: Any, norm: nn.LayerNorm) -> Start:
    return Start(packed(conv.weight), conv.bias, norm.weight, norm.bias, norm.eps)


def _with_residual(start: Start) -> onednn.Convolution:
    """x + conv(x) + bias as one depthwise convolution."""
    itself = functional.pad(torch.ones_like(start.weight[..., :1, :1]), (1, 1, 1, 1))
    return onednn.Convolution.of(start.weight + itself, start.bias, (1, 1), groups=start.weight.shape[0])


class FusedStem(Packed, Ready):
    """Image (B, bands, H, W) of any type and layout -> (B, h, w, C)."""

    weight0: Tensor

    def __init__(self, stem: Stem, dtype: torch.dtype) -> None:
        super().__init__()
        layers = (stem.conv1, *stem.conv2, stem.conv3[0])
        self.count = len(layers)
        for i, layer in enumerate(layers):
            conv = layer.conv
            self.keep(dtype, **{f"weight{i}": channels_last(conv.weight), f"bias{i}": conv.bias})
        self.last = Product.of(stem.conv3[1].conv, dtype)

    def make_ready(self) -> tuple[onednn.Convolution, ...]:
        """The convolutions; each but the third, which a residual follows, ends in a ReLU."""
        strides, activations = ((2, 2), (1, 1), (1, 1), (2, 2)), ("relu", "relu", "none", "relu")
        return tuple(
            onednn.Convolution.of(weight, bias, (1, 1), stride, activation=activation)
            for (weight, bias), stride, activation in zip(self._layers(), strides, activations, strict=True)
        )

    def _layers(self) -> list[tuple[Tensor, Tensor]]:
        return [(getattr(self, f"weight{i}"), getattr(self, f"bias{i}")) for i in range(self.count)]

    def forward(self, image: Tensor) -> Tensor:
        if onednn.applies(self.weight0):
            first, second, third, fourth = self.ready()
            x = first(image.to(self.weight0.dtype).permute(0, 2, 3, 1).contiguous())
            x = x.add_(third(second(x)))
            return self.last(fourth(x))
        (w0, b0), (w1, b1), (w2, b2), (w3, b3) = self._layers()
        x = convolve_image(image, w0, b0)
        x = convolve(convolve(x, w1, b1, relu=True), w2, b2, residual=x)
        return halve_and_mix(x, w3, b3, self.last.weight, self.last.bias)


class FusedDownsample(Packed, Ready):
    weight: Tensor
    bias: Tensor

    def __init__(self, downsample: Downsample, dtype: torch.dtype) -> None:
        super().__init__()
        convolutions: list[Any] = [layer.conv for layer in downsample.conv]
        expand, middle, reduce = convolutions
        self.expand = Product.of(expand, dtype, relu=True)
        self.keep(dtype, weight=packed(middle.weight), bias=middle.bias)
        self.reduce = Product.of(reduce, dtype)

    def make_ready(self) -> onednn.Convolution:
        channels = self.weight.shape[0]
        return onednn.Convolution.of(self.weight, self.bias, (1, 1), (2, 2), groups=channels, activation="relu")

    def forward(self, x: Tensor) -> Tensor:
        if onednn.applies(x):
            return self.reduce(self.ready()(self.expand(x)))
        x = depthwise3x3(self.expand(x), self.weight, self.bias, activation="relu", stride=2)
        return self.reduce(x)


class FusedVSSD(nn.Module):
    """Image (B, bands, H, W) of any type -> four feature maps, as VSSD's. Takes a backbone whose BatchNorms are
    folded."""

    takes_any_image = True

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

    def forward(self, image: Tensor) -> StageMaps:
        norms: list[Any] = list(self.norms)
        return StageMaps(list(self._maps(image)), norms)

    def _maps(self, image: Tensor) -> Iterator[Tensor]:
        """Each stage's map (B, h, w, C), before its norm."""
        x = self.stem(image)
        for i, blocks in enumerate(self.blocks):
            x = blocks(self.downsamples[i - 1](x) if i else x)
            yield x
