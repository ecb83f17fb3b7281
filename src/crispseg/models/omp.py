"""The Orthogonal Multi-Prototype (OMP) head: each class is several orthogonal prototypes made from the image.

features -> neck -> pixel map; features -> dynamic class tokens; tokens and pixels attend each other; a hyper-network
turns each token into K prototypes; a pixel's score for a class is its best cosine among that class's prototypes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from crispseg.errors import UserError
from crispseg.layout import to_channels_first, to_channels_last
from crispseg.models.layers import BatchNorm2d, ConvNorm
from crispseg.models.options import check_sizes
from crispseg.ops.common.precision import widened
from crispseg.ops.maps.normalize import layer_norm
from crispseg.ops.maps.resizing import add_resized
from crispseg.ops.train.cross_attention import attention, cross_attention
from crispseg.ops.train.matching import best_match, match, soft_match
from crispseg.ops.train.mlp import linear

if TYPE_CHECKING:
    from crispseg.exact.context import Context
    from crispseg.exact.omp import StreamedOMP
    from crispseg.exact.parts import Features
    from crispseg.exact.stream import Stream
    from crispseg.fused.head import FusedHead
    from crispseg.fused.neck import FusedConcat, FusedTopDown

SCALES = (1.0, 100.0)  # limits of the cosines' temperature; beyond them it has no gradient
AnyPixels = TypeVar("AnyPixels", bound="Pixels")


@dataclasses.dataclass(frozen=True)
class OMPConfig:
    """The paper gives the head's steps but not its sizes; `neck` picks one of two readings, each of which meets one of
    its counts (parameters or arithmetic), and with it the defaults (None below) of the four fields it brings along."""

    neck: Literal["concat", "topdown"] = "topdown"
    prototypes: int = 3  # K
    dim: int = 256
    attention_heads: int = 8
    candidates: int = 4  # M: entries of the bank that a class token is mixed from
    layers: int | None = None  # of two-way attention: 3 or 2
    hyper: Literal["shared", "per_class"] | None = None
    descriptor_dim: int | None = None  # d_h: 64 or 256
    descriptor_stride: Literal[2, 4] | None = None
    mlp_dim: int | None = None  # of the token MLP; 8 x dim
    logit_scale: float = 10.0  # start of the learned temperature of the cosines
    # How prototypes compete for a pixel in training: "max" is the paper's equation; "lse" a log-sum-exp whose softness
    # falls from 1 to all but nothing over three quarters of the training, so that all prototypes get gradients before
    # the best takes all. Evaluation takes the maximum in both.
    matching: Literal["max", "lse"] = "max"
    centred: bool = False  # pixels are centred (and scaled) over the training set before they are matched

    def __post_init__(self) -> None:
        check_sizes(prototypes=self.prototypes, dim=self.dim, attention_heads=self.attention_heads)
        check_sizes(candidates=self.candidates, layers=self.layers, descriptor_dim=self.descriptor_dim)
        check_sizes(mlp_dim=self.mlp_dim)
        if self.dim % 2:
            raise UserError(f"dim must be even, as class tokens are made of two halves, not {self.dim}")
        if not 0 < self.logit_scale < math.inf:
            raise UserError(f"logit_scale must be more than 0, not {self.logit_scale}")

    def resolved(self) -> OMPConfig:
        """The config with no None left."""
        concat = self.neck == "concat"
        return dataclasses.replace(
            self,
            layers=self.layers or (3 if concat else 2),
            hyper=self.hyper or ("shared" if concat else "per_class"),
            descriptor_dim=self.descriptor_dim or (self.dim // 4 if concat else self.dim),
            descriptor_stride=self.descriptor_stride or (2 if concat else 4),
            mlp_dim=self.mlp_dim or 8 * self.dim,
        )


class Matches(NamedTuple):
    """What the logits of every prototype are made of. They are many, and few losses ask for them."""

    descriptors: Tensor  # (B, d_h, h, w)
    prototypes: Tensor  # (B, classes, K, d_h)
    scale: Tensor

    def logits(self) -> Tensor:
        """(B, classes, K, h, w)."""
        return match(self.descriptors, self.prototypes) * self.scale


class Matched(NamedTuple):
    logits: Tensor  # (B, classes, h, w) at the descriptors' stride
    prototypes: Tensor  # (B, classes, K, d_h), L2-normalised
    allocation: Tensor | None  # (B, classes, h, w) index of the winning prototype, when asked for
    matches: Matches | None = None  # in training with soft matching


class ConcatNeck(nn.Module):
    """A linear map from each stage, all resized to stride 4, concatenated and mixed."""

    def __init__(self, widths: Sequence[int], dim: int) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(width, dim, 1) for width in widths)
        self.mix = nn.Conv2d(len(widths) * dim, dim, 1, bias=False)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Each stage is mixed at its own size, then resized and added: the same sums, and nothing is concatenated."""
        parts = self.mix.weight.chunk(len(self.lateral), dim=1)
        x, *deeper = (
            functional.conv2d(lateral(feature), part)
            for lateral, feature, part in zip(self.lateral, features, parts, strict=True)
        )
        for coarser in deeper:
            x = add_resized(x, coarser)
        return x

    def in_fused_head(self, order: Tensor, dtype: torch.dtype) -> FusedConcat:
        from crispseg.fused.neck import FusedConcat

        return FusedConcat(self, order, dtype)

    def in_bands(self, run: Context, features: Features) -> Stream:
        from crispseg.exact.omp import concat_in_bands

        return concat_in_bands(self, run, features)


class TopDownNeck(nn.Module):
    """A convolution from each stage, added from the deepest up, and one 3x3 convolution at stride 4."""

    def __init__(self, widths: Sequence[int], dim: int) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(ConvNorm(width, dim, 1) for width in widths)
        self.mix = ConvNorm(dim, dim, 3)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        maps = [lateral(x) for lateral, x in zip(self.lateral, features, strict=True)]
        x = maps[-1]
        for finer in reversed(maps[:-1]):
            x = add_resized(finer, x)
        return self.mix(x)

    def in_fused_head(self, order: Tensor, dtype: torch.dtype) -> FusedTopDown:
        from crispseg.fused.neck import FusedTopDown

        return FusedTopDown(self, order, dtype)

    def in_bands(self, run: Context, features: Features) -> Stream:
        from crispseg.exact.omp import top_down_in_bands

        return top_down_in_bands(self, run, features)


class DynamicTokens(nn.Module):
    """Class tokens as content-adaptive mixtures over a learned bank: |C| x M candidates, weighted by the image."""

    def __init__(self, in_width: int, num_classes: int, dim: int, candidates: int) -> None:
        super().__init__()
        half = dim // 2
        self.candidates = candidates
        self.embedding = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.trunc_normal_(self.embedding, std=1.0)
        self.expand = nn.Linear(dim, candidates * dim)
        self.reduce = nn.Linear(in_width, dim)
        self.from_max = nn.Linear(half, half)
        self.from_mean = nn.Linear(half, half)
        self.weigh = nn.Sequential(
            nn.Linear(2 * half, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, num_classes * candidates)
        )

    def forward(self, feature: Tensor) -> Tensor:
        """The deepest feature map (B, C, h, w) -> tokens (B, classes, dim)."""
        for_max, for_mean = self.halves(feature.flatten(2).transpose(1, 2))
        return self.tokens(for_max.amax(1), for_mean.mean(1))

    def halves(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """What the maximum and what the mean is taken of: pixels (B, L, C) -> (B, L, dim / 2) each."""
        for_max, for_mean = linear(pixels, self.reduce.weight, self.reduce.bias).chunk(2, dim=-1)
        return for_max, for_mean

    def tokens(self, maximum: Tensor, mean: Tensor) -> Tensor:
        """The class tokens of an image whose halves have this maximum and mean."""
        bank = self.expand(self.embedding).unflatten(-1, (self.candidates, -1))  # (classes, M, dim)
        return torch.einsum("bcm,cmd->bcd", self.weights(maximum, mean).to(bank.dtype), bank)

    def weights(self, maximum: Tensor, mean: Tensor) -> Tensor:
        """How much of each candidate the image calls for: (B, classes, M), rows sum to one."""
        context = torch.cat([self.from_max(maximum), self.from_mean(mean)], dim=-1)
        return self.weigh(context).unflatten(-1, (-1, self.candidates)).softmax(-1)


class Attention(nn.Module):
    """Multi-head attention whose inner width may be smaller than its tokens'."""

    def __init__(self, dim: int, inner: int, heads: int) -> None:
        super().__init__()
        if inner % heads:
            raise UserError(f"{heads} attention heads do not divide the inner width {inner}")
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(dim, inner) for _ in range(3))
        self.out = nn.Linear(inner, dim)

    def forward(self, query: Tensor, source: Tensor) -> Tensor:
        q = linear(query, self.q.weight, self.q.bias)
        if cross_attention.takes(q, source, self.heads):
            y = cross_attention(q, self.keys_and_values(source), self.heads)
        else:
            y = attention(q, self.k(source), self.v(source), self.heads)
        return linear(y, self.out.weight, self.out.bias)

    def keys_and_values(self, source: Tensor) -> Tensor:
        """Side by side, (B, S, 2 x inner)."""
        weight, bias = (torch.cat(both) for both in ((self.k.weight, self.v.weight), (self.k.bias, self.v.bias)))
        return linear(source, weight, bias)


class Pixels(Protocol):
    """The pixels (B, L, dim) that class tokens attend and that attend them: at once, or in bands."""

    def read(self, attention: Attention, tokens: Tensor) -> Tensor:
        """What the tokens see in them."""
        ...

    def changed(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Each pixel by itself."""
        ...


class WholePixels(NamedTuple):
    values: Tensor  # (B, L, dim)

    def read(self, attention: Attention, tokens: Tensor) -> Tensor:
        return attention(tokens, self.values)

    def changed(self, function: Callable[[Tensor], Tensor]) -> WholePixels:
        return WholePixels(function(self.values))


class TwoWayLayer(nn.Module):
    """Tokens attend themselves, then the pixels, then pass an MLP; then pixels attend tokens. Post-LN residuals."""

    def __init__(self, dim: int, heads: int, mlp_dim: int) -> None:
        super().__init__()
        self.self_attention = Attention(dim, dim, heads)
        self.tokens_to_pixels = Attention(dim, dim // 2, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_dim), nn.ReLU(), nn.Linear(mlp_dim, dim))
        self.pixels_to_tokens = Attention(dim, dim // 2, heads)
        self.norm1, self.norm2, self.norm3, self.norm4 = (nn.LayerNorm(dim) for _ in range(4))

    def forward(self, tokens: Tensor, pixels: AnyPixels) -> tuple[Tensor, AnyPixels]:
        tokens = self.norm1(tokens + self.self_attention(tokens, tokens))
        tokens = self.norm2(tokens + pixels.read(self.tokens_to_pixels, tokens))
        tokens = self.norm3(tokens + self.mlp(tokens))
        return tokens, pixels.changed(functools.partial(self.read_tokens, tokens=tokens))

    def read_tokens(self, pixels: Tensor, tokens: Tensor) -> Tensor:
        """The last step: pixels attend tokens, with residual and norm."""
        norm = self.norm4
        return layer_norm(pixels + self.pixels_to_tokens(pixels, tokens), norm.weight, norm.bias, norm.eps)


class HyperNetwork(nn.Module):
    """Class tokens (B, classes, dim) -> prototypes (B, classes, K, d_h), by a three-layer MLP shared by all
    classes or one per class (then its weights have a leading class axis, and all run as one batched product)."""

    def __init__(self, dim: int, prototypes: int, descriptor_dim: int, groups: int) -> None:
        super().__init__()
        self.prototypes, self.dim = prototypes, dim
        sizes = [dim, dim, dim, prototypes * descriptor_dim]
        self.weights = nn.ParameterList(
            torch.empty(groups, i, o).uniform_(-1, 1) / math.sqrt(i) for i, o in itertools.pairwise(sizes)
        )
        self.biases = nn.ParameterList(
            torch.empty(groups, 1, o).uniform_(-1, 1) / math.sqrt(i) for i, o in itertools.pairwise(sizes)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        groups = self.weights[0].shape[0]
        shared = groups == 1
        x = tokens.flatten(0, 1)[None] if shared else tokens.transpose(0, 1)  # (groups, rows, dim)
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias.to(x.dtype), x, weight.to(x.dtype))
            if i < len(self.weights) - 1:
                x = functional.relu(x)
        x = x.view(*tokens.shape[:2], -1) if shared else x.transpose(0, 1)
        return x.unflatten(-1, (self.prototypes, -1))


class OMPHead(nn.Module):
    """Four feature maps -> scores of every class at the descriptors' stride (see Matched)."""

    def __init__(self, widths: Sequence[int], num_classes: int, config: OMPConfig) -> None:
        super().__init__()
        self.config = config = config.resolved()
        self.widths, self.num_classes = tuple(widths), num_classes
        assert config.layers and config.descriptor_dim and config.mlp_dim
        if config.descriptor_stride == 2 and config.dim != 4 * config.descriptor_dim:
            raise UserError(
                f"at descriptor_stride 2 a descriptor has dim / 4 = {config.dim // 4} channels, "
                f"not descriptor_dim = {config.descriptor_dim}"
            )
        if config.descriptor_stride == 4 and config.dim != config.descriptor_dim:
            raise UserError(
                f"at descriptor_stride 4 descriptor_dim must equal dim = {config.dim}, not {config.descriptor_dim}"
            )
        dim, heads = config.dim, config.attention_heads
        self.neck = (ConcatNeck if config.neck == "concat" else TopDownNeck)(widths, dim)
        self.tokens = DynamicTokens(widths[-1], num_classes, dim, config.candidates)
        self.layers = nn.ModuleList(TwoWayLayer(dim, heads, config.mlp_dim) for _ in range(config.layers))
        self.final_attention = Attention(dim, dim // 2, heads)
        self.final_norm = nn.LayerNorm(dim)
        groups = 1 if config.hyper == "shared" else num_classes
        self.hyper = HyperNetwork(dim, config.prototypes, config.descriptor_dim, groups)
        self.log_scale = nn.Parameter(torch.tensor(math.log(config.logit_scale)))
        self.centre = BatchNorm2d(dim, affine=False) if config.centred else None
        self.softness: Tensor
        self.register_buffer("softness", torch.tensor(1.0), persistent=False)

    def at_progress(self, progress: float) -> None:
        self.softness.fill_(softness_at(progress))

    def forward(self, features: Sequence[Tensor], allocation: bool = False) -> Matched:
        tokens, pixels = self.interact(features)
        prototypes = self.prototypes(tokens)
        if self.training and self.config.matching == "lse":
            scale = self.scale()  # with T the softness, T log sum_k exp(z_k / T) of the logits z = scale * cosines
            logits = scale * soft_match(pixels, prototypes, scale / self.softness)
            return Matched(logits, prototypes, None, Matches(pixels, prototypes, scale))
        logits, winners = self.scores(pixels, prototypes)
        return Matched(logits, prototypes, winners.long() if allocation else None)

    def interact(self, features: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Refined class tokens (B, classes, dim) and pixel descriptors (B, d_h, h, w)."""
        x = self.neck(features)
        tokens, pixels = self.refine(self.tokens(features[-1]), WholePixels(x.flatten(2).transpose(1, 2)))
        return tokens, self.descriptors(pixels.values.transpose(1, 2).unflatten(-1, x.shape[-2:]))

    # The steps between neck and logits, which are also those of a scene in bands (`crispseg.exact`).

    def refine(self, tokens: Tensor, pixels: AnyPixels) -> tuple[Tensor, AnyPixels]:
        """Tokens (B, classes, dim) and pixels that have attended each other."""
        for layer in self.layers:
            tokens, pixels = layer(tokens, pixels)
        if self.centre is not None:
            pixels = pixels.changed(self._centred)
        return self.final_norm(tokens + pixels.read(self.final_attention, tokens)), pixels

    def _centred(self, pixels: Tensor) -> Tensor:
        assert self.centre is not None
        # As a map of one row, channels last: for (B, dim, L, 1) with dim innermost torch's BatchNorm on a CPU gives
        # wrong gradients, as the strides do not say which way the map lies.
        return to_channels_last(self.centre(to_channels_first(pixels[:, None])))[:, 0]

    @property
    def descriptors_along_a_side(self) -> int:
        """Of a pixel at stride 4."""
        return 2 if self.config.descriptor_stride == 2 else 1

    def descriptors(self, pixels: Tensor) -> Tensor:
        """Pixels (B, dim, h, w) -> (B, d_h, h, w) at the descriptors' stride."""
        finer = self.descriptors_along_a_side
        return functional.pixel_shuffle(pixels, finer) if finer > 1 else pixels

    def prototypes(self, tokens: Tensor) -> Tensor:
        """(B, classes, K, d_h), normalised."""
        return functional.normalize(widened(self.hyper(tokens)), dim=-1)

    def scores(self, descriptors: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, classes, h, w), and which prototype they are of."""
        best, winners = best_match(descriptors, prototypes)
        return best * self.scale(), winners

    def for_evaluation(self, dtype: torch.dtype) -> FusedHead:
        from crispseg.fused.head import FusedHead

        return FusedHead(self, dtype)

    def streamed(self) -> StreamedOMP:
        from crispseg.exact.omp import StreamedOMP

        return StreamedOMP(self)

    def scale(self) -> Tensor:
        """The cosines' temperature: learned, kept within its limits."""
        low, high = SCALES
        return widened(self.log_scale).clamp(math.log(low), math.log(high)).exp()


_SOFT_UNTIL, _LEAST_SOFTNESS = 0.75, 0.02


def softness_at(progress: float) -> float:
    """From 1 in a straight line to all but nothing at three quarters of the training, then constant."""
    return max(_LEAST_SOFTNESS, 1 - progress / _SOFT_UNTIL)
