"""The VSSD backbone: four stages of non-causal state space duality (NC-SSD), calibrated by DCO.

Maps run through it channels-last, (B, H, W, C). Module names follow the public VSSD code so that its checkpoints fit.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from crispseg import config as configs
from crispseg.errors import UserError, unknown
from crispseg.layout import to_channels_first, to_channels_last
from crispseg.models.dco import DCO, DCOConfig, dco_config
from crispseg.models.layers import ConvNorm, DropPath
from crispseg.models.options import check_sizes
from crispseg.ops import Gates, Rule, ncssd
from crispseg.ops.common.norm import Norm
from crispseg.ops.common.precision import widened
from crispseg.ops.infer.gated_mixer import Mixing
from crispseg.ops.maps.depthwise import depthwise3x3
from crispseg.ops.maps.normalize import layer_norm
from crispseg.ops.nc_ssd.spec import Fusion as OperatorFusion
from crispseg.ops.train.gated_mixer import convolve_mix_gate
from crispseg.ops.train.mlp import mlp

if TYPE_CHECKING:
    from crispseg.exact.backbone import StreamedVSSD
    from crispseg.exact.mixers import StreamedAttention, StreamedNCSSD
    from crispseg.fused.backbone import FusedAttention, FusedMixer, FusedVSSD

Fusion = Literal["raw", "normalized", "selective"]

_ALIGNED = 8  # numbers in half precision that the fastest matrix products load at once


@dataclasses.dataclass(frozen=True)
class VSSDConfig:
    width: int  # channels of stage 1; they double at every stage
    depths: tuple[int, int, int, int]
    heads: tuple[int, int, int, int]
    state: int  # N
    drop_path: float
    expand: int = 2
    mlp_ratio: int = 4
    fusion: Fusion = "normalized"
    selectivity: float = 1.0  # start of the temperatures of keys and queries in selective fusion
    dco: bool | DCOConfig = True
    last_stage: Literal["ncssd", "attention"] = "ncssd"
    checkpointing: bool = False  # recompute each block in the backward pass: less memory, more time

    def __post_init__(self) -> None:
        check_sizes(width=self.width, depths=self.depths, heads=self.heads, state=self.state)
        check_sizes(expand=self.expand, mlp_ratio=self.mlp_ratio)
        if self.width < 2:
            raise UserError(f"width must be at least 2, as the stem begins with half of it, not {self.width}")
        if not math.isfinite(self.selectivity):
            raise UserError(f"selectivity must be a finite number, not {self.selectivity}")
        if not 0 <= self.drop_path < 1:
            raise UserError(f"drop_path must be at least 0 and below 1, not {self.drop_path}")
        if self.selectivity != VSSDConfig.selectivity and self.fusion != "selective":
            raise UserError(
                f"selectivity is for selective fusion: {self.fusion} has none; give fusion=selective, or leave it out"
            )

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(self.width * 2**stage for stage in range(4))


# width, depths, heads, state, drop path; nano is ours, the others are the published variants.
VARIANTS = {
    "vssd_nano": VSSDConfig(32, (2, 2, 4, 2), (1, 2, 4, 8), 32, 0.05),
    "vssd_micro": VSSDConfig(48, (2, 2, 8, 4), (2, 4, 8, 16), 48, 0.1),
    "vssd_tiny": VSSDConfig(64, (2, 4, 8, 4), (2, 4, 8, 16), 64, 0.2),
    "vssd_small": VSSDConfig(64, (3, 4, 21, 5), (2, 4, 8, 16), 64, 0.4),
    "vssd_base": VSSDConfig(96, (3, 4, 21, 5), (3, 6, 12, 24), 64, 0.6),
}


class Selection(nn.Module):
    """Keys and queries of selective fusion: each token's N numbers are centred and brought to one size, then scaled by
    learned temperatures before the kernel elu + 1.

    What SiLU leaves of B and C is small beside one, so elu + 1 of it is nearly constant and attention nearly uniform.
    A temperature decides instead: at 0 attention is uniform, and the larger it grows, the more a token selects.
    """

    def __init__(self, state: int, temperature: float) -> None:
        super().__init__()
        self.keys, self.queries = nn.LayerNorm(state), nn.LayerNorm(state)
        for norm in (self.keys, self.queries):
            nn.init.constant_(norm.weight, temperature)

    def forward(self, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """B and C (B, L, N), likewise what comes of them."""
        return _scaled(b, self.keys), _scaled(c, self.queries)


def _scaled(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    return functional.layer_norm(x, norm.normalized_shape, norm.weight.to(x.dtype), norm.bias.to(x.dtype), norm.eps)


class NCSSDMixer(nn.Module):
    """Mixes all tokens of a map through one shared state per head, in linear time."""

    def __init__(self, width: int, heads: int, config: VSSDConfig) -> None:
        super().__init__()
        inner = config.expand * width
        if inner % heads:
            raise UserError(f"{heads} heads do not divide the inner width {inner} (= {config.expand} x {width})")
        self.heads, self.head_width, self.state = heads, inner // heads, config.state
        calibration = dco_config(config.dco)
        # Selective fusion is the normalised one of keys and queries that were scaled first.
        fusion: OperatorFusion = "raw" if config.fusion == "raw" else "normalized"
        self.rule = Rule(fusion, calibration.residual_readout, calibration.skip)
        self.selection = Selection(config.state, config.selectivity) if config.fusion == "selective" else None
        self.in_proj = nn.Linear(width, 2 * inner + 2 * config.state + heads, bias=False)
        mixed = inner + 2 * config.state
        self.conv2d = nn.Conv2d(mixed, mixed, 3, padding=1, groups=mixed)
        self.dt_bias = nn.Parameter(_initial_dt_bias(heads))
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(heads))
        self.dco = DCO(heads, self.head_width, calibration) if calibration.enabled else None
        self.norm = nn.LayerNorm(inner)
        self.out_proj = nn.Linear(inner, width, bias=False)

    def gates(self) -> Gates:
        return Gates() if self.dco is None else self.dco.gates()

    def mixing(self, gates: Gates) -> Mixing:
        norm = Norm(self.norm.weight, self.norm.bias, self.norm.eps)
        return Mixing(self.dt_bias, self.A_log, self.D, gates, self.rule, norm)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Linear projections of a map (B, H, W, C): the gate z, the map xBC still to be convolved, and dt."""
        return self._split(self._project(x))

    def _project(self, x: Tensor) -> Tensor:
        # Columns of zeros, as a product of a width that is no multiple of eight takes twice the time.
        spare = -self.in_proj.out_features % _ALIGNED if _in_half_precision_on_cuda(x) else 0
        if spare:
            return functional.linear(x, functional.pad(self.in_proj.weight, (0, 0, 0, spare)))
        projected: Tensor = self.in_proj(x)
        return projected

    def _split(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inner = self.heads * self.head_width
        spare = projected.shape[-1] - self.in_proj.out_features
        sizes = [inner, inner + 2 * self.state, self.heads, *([spare] if spare else [])]
        z, xbc, dt = projected.split(sizes, dim=-1)[:3]
        return z, xbc, dt

    def tokens(self, xbc: Tensor, dt: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """V (B, L, H, P), B and C (B, L, N), rho (B, L, H) of a convolved map xBC (B, H, W, d + 2N)."""
        inner = self.heads * self.head_width
        v, b, c = xbc.flatten(1, 2).split([inner, self.state, self.state], dim=-1)
        if self.selection is not None:
            b, c = self.selection(b, c)
        dt = functional.softplus(widened(dt.flatten(1, 2)) + widened(self.dt_bias))
        return v.unflatten(-1, (self.heads, self.head_width)), b, c, dt * widened(self.A_log).exp()

    def finish(self, y: Tensor, z: Tensor) -> Tensor:
        """LayerNorm, gate and output projection: y (B, L, H, P), z (B, H, W, d) -> (B, H, W, C)."""
        y = functional.layer_norm(
            y.flatten(2), self.norm.normalized_shape, self.norm.weight.to(y.dtype), self.norm.bias.to(y.dtype)
        )
        return self.out_proj(y.to(z.dtype).reshape(z.shape) * z)

    def convolve(self, xbc: Tensor) -> Tensor:
        return depthwise3x3(xbc, self.conv2d.weight, self.conv2d.bias, activation="silu")

    def forward(self, x: Tensor) -> Tensor:
        projected, gates = self._project(x), self.gates()
        at_once = self._at_once(projected, gates)
        if self.selection is None and convolve_mix_gate.takes(*at_once):
            return self.out_proj(convolve_mix_gate(*at_once))
        z, xbc, dt = self._split(projected)
        v, b, c, rho = self.tokens(self.convolve(xbc), dt)
        return self.finish(ncssd(v, b, c, rho, self.D, gates, self.rule), z)

    def in_fused_block(self, dtype: torch.dtype) -> FusedMixer:
        from crispseg.fused.backbone import FusedMixer

        return FusedMixer(self, dtype)

    def streamed(self) -> StreamedNCSSD:
        from crispseg.exact.mixers import StreamedNCSSD

        return StreamedNCSSD(self)

    def _at_once(self, projected: Tensor, gates: Gates) -> Any:
        """What all between the two projections is made of, as one operation, where there are kernels for it."""
        return projected, self.conv2d.weight, self.conv2d.bias, self.mixing(gates)


class AttentionMixer(nn.Module):
    """Softmax attention over all tokens: the public VSSD's fourth stage."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise UserError(f"{heads} heads do not divide the width {width} that stage 4's attention has")
        self.heads = heads
        self.to_qkv = nn.Linear(width, 3 * width, bias=False)
        self.to_out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.to_qkv(x.flatten(1, 2)).unflatten(-1, (3, self.heads, -1))  # (B, L, 3, heads, width)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.to_out(y.transpose(1, 2).reshape(x.shape))

    def in_fused_block(self, dtype: torch.dtype) -> FusedAttention:
        from crispseg.fused.backbone import FusedAttention

        return FusedAttention(self, dtype)

    def streamed(self) -> StreamedAttention:
        from crispseg.exact.mixers import StreamedAttention

        return StreamedAttention(self)


class MLP(nn.Module):
    def __init__(self, width: int, ratio: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, ratio * width)
        self.fc2 = nn.Linear(ratio * width, width)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return mlp(x, self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias)
        return self.fc2(functional.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, mixer: str, drop_path: float, config: VSSDConfig) -> None:
        super().__init__()
        self.cpe1 = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm1 = nn.LayerNorm(width)
        self.attn = NCSSDMixer(width, heads, config) if mixer == "ncssd" else AttentionMixer(width, heads)
        self.cpe2 = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = MLP(width, config.mlp_ratio)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        x, normed = _position_and_norm(x, self.cpe1, self.norm1)
        x = self.drop_path.add(x, self.attn(normed))
        x, normed = _position_and_norm(x, self.cpe2, self.norm2)
        return self.drop_path.add(x, self.mlp(normed))


class Stem(nn.Module):
    """Image to stride 4, by two strided 3x3 convolutions."""

    def __init__(self, in_channels: int, width: int) -> None:
        super().__init__()
        half = width // 2
        self.conv1 = ConvNorm(in_channels, half, 3, stride=2)
        self.conv2 = nn.Sequential(ConvNorm(half, half, 3), ConvNorm(half, half, 3, act=False))
        self.conv3 = nn.Sequential(ConvNorm(half, 4 * width, 3, stride=2), ConvNorm(4 * width, width, 1, act=False))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        return self.conv3(x + self.conv2(x))


class Downsample(nn.Module):
    """Halves the map and doubles its channels, through an inverted bottleneck."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            ConvNorm(width, 8 * width, 1, bias=True, norm=False),
            ConvNorm(8 * width, 8 * width, 3, stride=2, groups=8 * width, bias=True, norm=False),
            ConvNorm(8 * width, 2 * width, 1, bias=True, act=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        widen, halve, narrow = self.conv
        x = to_channels_last(widen(to_channels_first(x)))
        assert isinstance(halve, ConvNorm)
        x = depthwise3x3(x, halve.conv.weight, halve.conv.bias, activation="relu", stride=2)
        return to_channels_last(narrow(to_channels_first(x)))


class Stage(nn.Module):
    def __init__(self, index: int, drop_paths: list[float], config: VSSDConfig) -> None:
        super().__init__()
        width = config.widths[index]
        mixer = config.last_stage if index == 3 else "ncssd"
        self.blocks = nn.ModuleList(Block(width, config.heads[index], mixer, p, config) for p in drop_paths)
        self.downsample = Downsample(width) if index < 3 else None
        self.checkpointing = config.checkpointing

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The stage's map, and the map that the next stage starts from."""
        for block in self.blocks:
            recompute = self.checkpointing and self.training
            x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        return x, x if self.downsample is None else self.downsample(x)


class VSSD(nn.Module):
    """Image (B, bands, H, W) -> four feature maps at strides 4, 8, 16 and 32 (sizes rounded up)."""

    origin: str = "random weights"  # what its weights came from, in words; not saved

    def __init__(self, config: VSSDConfig, in_channels: int = 3) -> None:
        super().__init__()
        self.config = config
        self.in_channels = in_channels
        self.patch_embed = Stem(in_channels, config.width)
        depth = sum(config.depths)
        rates = [config.drop_path * i / max(depth - 1, 1) for i in range(depth)]
        starts = [sum(config.depths[:i]) for i in range(5)]
        self.layers = nn.ModuleList(Stage(i, rates[starts[i] : starts[i + 1]], config) for i in range(4))
        for i, width in enumerate(config.widths):
            setattr(self, f"outnorm{i}", nn.LayerNorm(width))
        self.apply(_init_linear)

    @property
    def widths(self) -> tuple[int, ...]:
        return self.config.widths

    def forward(self, image: Tensor) -> list[Tensor]:
        x = to_channels_last(self.patch_embed(image))
        features = []
        for i, stage in enumerate(self.layers):
            feature, x = stage(x)
            norm = getattr(self, f"outnorm{i}")
            features.append(to_channels_first(layer_norm(feature, norm.weight, norm.bias, norm.eps)))
        return features

    def for_evaluation(self, dtype: torch.dtype) -> FusedVSSD:
        from crispseg.fused.backbone import FusedVSSD

        return FusedVSSD(self, dtype)

    def streamed(self) -> StreamedVSSD:
        from crispseg.exact.backbone import StreamedVSSD

        return StreamedVSSD(self)


def backbone_config(name: str, **options: Any) -> VSSDConfig:
    """A published variant's config with some fields changed; `dco` may be a bool, a mapping or a DCOConfig."""
    if name not in VARIANTS:
        raise unknown("backbone", name, VARIANTS)
    if isinstance(options.get("dco"), Mapping):
        options["dco"] = dco_config(options["dco"])
    return configs.build(VSSDConfig, configs.to_dict(VARIANTS[name]) | options)


def create_backbone(
    name: str, in_channels: int = 3, *, pretrained: bool | str | os.PathLike[str] = False, **options: Any
) -> VSSD:
    """Build a backbone by its name, with fresh weights.

        backbone = crispseg.create_backbone("vssd_tiny", fusion="raw", dco=False, last_stage="attention")

    Args:
        name: One of `list_backbones()`.
        in_channels: How many bands its images have.
        pretrained: True takes the weights that come with crispseg instead, for any number of bands; an error where
            these are not of the same function. Else a backbone's name, its folder, or a run of `crisp pretrain`.
        options: Fields of `VSSDConfig`. Those above make the public VSSD, whose weights `load_vssd_checkpoint` reads.

    Returns:
        A module that maps images (B, bands, H, W) to four feature maps, at 1/4, 1/8, 1/16 and 1/32 of the size.
    """
    configs.check_arguments(create_backbone, locals())
    check_sizes(in_channels=in_channels)
    backbone = VSSD(backbone_config(name, **options), int(in_channels))
    if pretrained:
        from crispseg.models.pretrained import start_as_asked

        start_as_asked(backbone, pretrained, name)
    return backbone


def variant_of(config: VSSDConfig) -> str:
    """The name of the variant that has this config's sizes; empty when none has."""
    sizes = ("width", "depths", "heads", "state", "expand", "mlp_ratio")
    for name, variant in VARIANTS.items():
        if all(getattr(variant, size) == getattr(config, size) for size in sizes):
            return name
    return ""


def list_backbones() -> list[str]:
    """The names that `create_backbone` takes."""
    return list(VARIANTS)


def _position_and_norm(x: Tensor, conv: nn.Conv2d, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """The map plus its convolution, which lets tokens know where they are, and the LayerNorm of that."""
    x = depthwise3x3(x, conv.weight, conv.bias, residual=True)
    return x, layer_norm(x, norm.weight, norm.bias, norm.eps)


def _in_half_precision_on_cuda(x: Tensor) -> bool:
    """Whether a linear layer of x is computed so."""
    return x.is_cuda and (x.dtype in (torch.bfloat16, torch.float16) or torch.is_autocast_enabled("cuda"))


def _initial_dt_bias(heads: int, low: float = 1e-3, high: float = 1e-1, floor: float = 1e-4) -> Tensor:
    """The inverse softplus of a log-uniform draw."""
    dt = torch.empty(heads).uniform_(math.log(low), math.log(high)).exp().clamp(min=floor)
    return dt + torch.log(-torch.expm1(-dt))


def _init_linear(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
