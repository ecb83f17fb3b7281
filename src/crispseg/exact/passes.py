"""The passes of a run and what each costs.

A pass is one sweep over the rows of a map. Its `floats` (numbers alive at once per pixel of that map, measured to be
on the safe side) choose the height of its bands; its `macs` (multiply-adds per pixel) are the unit of progress and
of the time estimate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from torch import nn

from crispseg.exact.resize import Size
from crispseg.models.crisp import CRISP
from crispseg.models.layers import ConvNorm
from crispseg.models.omp import OMPHead
from crispseg.models.upernet import UPerHead, UPerNet
from crispseg.models.vssd import VSSD, AttentionMixer, NCSSDMixer, Stage

Model = CRISP | UPerNet
KEYS = 1024  # keys that a softmax over a whole map looks at in one step


@dataclasses.dataclass(frozen=True)
class Pass:
    name: str
    size: Size
    floats: float
    macs: float
    times: int = 1  # blocks of a stage make the same pass one after another

    @property
    def total_macs(self) -> float:
        return self.macs * self.size[0] * self.size[1] * self.times


def model_passes(model: Model, sizes: Sequence[Size]) -> Iterator[Pass]:
    """All passes over the maps of four stages of these sizes."""
    yield from _backbone_passes(model.backbone, sizes)
    if isinstance(model, CRISP):
        yield from _omp_passes(model.head, model.num_classes, sizes)
    else:
        yield from _upernet_passes(model.head, model.num_classes, sizes)


def seen_channels(stage: Stage) -> int:
    """Channels of what a stage's mixers must see again once they have seen all tokens; 0 where nothing.

    Attention: queries, keys and values. NC-SSD: queries, where the mean of the outputs is used and the queries'
    normaliser waits for the sum of all keys.
    """
    for block in stage.blocks:
        mixer = block.attn
        if isinstance(mixer, AttentionMixer):
            return mixer.to_qkv.out_features
        assert isinstance(mixer, NCSSDMixer)
        if mixer.rule.fusion == "normalized" and mixer.gates().use_mean:
            return mixer.state
    return 0


def _backbone_passes(backbone: VSSD, sizes: Sequence[Size]) -> Iterator[Pass]:
    width, bands = backbone.config.width, backbone.in_channels
    half = width // 2
    stem = 4 * 9 * half * (bands + 2 * half) + 9 * half * 4 * width + 4 * width * width
    yield Pass("stem", sizes[0], 32 * bands + 4 * 7 * half + 14 * width, stem)
    for i, stage in enumerate(backbone.layers):
        assert isinstance(stage, Stage)
        attends = i == 3 and backbone.config.last_stage == "attention"
        yield from (_attention_passes if attends else _ncssd_passes)(backbone, stage, i, sizes[i])
        if stage.downsample is not None:
            c = backbone.widths[i]
            # one pixel of the next map is made of four of this one, eight times as wide in the bottleneck
            yield Pass(f"down{i}", sizes[i + 1], 4 * 26 * c + 20 * c, 4 * 8 * c * c + 9 * 8 * c + 16 * c * c)


def _ncssd_passes(backbone: VSSD, stage: Stage, i: int, size: Size) -> Iterator[Pass]:
    config, c, blocks = backbone.config, backbone.widths[i], len(stage.blocks)
    n, inner = config.state, config.expand * c
    projected, mixed = 2 * inner + 2 * n + config.heads[i], inner + 2 * n
    macs = c * projected + 9 * c + 9 * mixed + n * inner
    floats = 4 * c + 2 * projected + 3 * mixed + 2 * inner
    yield Pass(f"gather{i}", size, floats, macs, blocks)
    if seen_channels(stage):
        yield Pass(f"queries{i}", size, 4 * n, 2 * n, blocks)
    mlp_floats, mlp_macs = _mlp(backbone, c)
    yield Pass(f"spread{i}", size, floats + inner + mlp_floats, macs + inner * c + mlp_macs, blocks)


def _attention_passes(backbone: VSSD, stage: Stage, i: int, size: Size) -> Iterator[Pass]:
    c, heads, blocks, tokens = backbone.widths[i], backbone.config.heads[i], len(stage.blocks), size[0] * size[1]
    yield Pass(f"gather{i}", size, 12 * c, 3 * c * c + 9 * c, blocks)
    mlp_floats, mlp_macs = _mlp(backbone, c)
    floats = 6 * c + 3 * heads * min(max(KEYS, size[1]), tokens) + mlp_floats
    yield Pass(f"spread{i}", size, floats, 2 * tokens * c + c * c + mlp_macs, blocks)


def _mlp(backbone: VSSD, c: int) -> tuple[int, int]:
    """Floats and multiply-adds of a block's second half."""
    ratio = backbone.config.mlp_ratio
    return (2 * ratio + 4) * c, 2 * ratio * c * c + 9 * c


def _omp_passes(head: OMPHead, classes: int, sizes: Sequence[Size]) -> Iterator[Pass]:
    config, dim = head.config, head.config.dim
    widths = [_in_channels(layer) for layer in head.neck.lateral]
    lateral = sum(c / 4**i for i, c in enumerate(widths)) * dim
    scores = 3 * config.attention_heads * classes
    yield Pass("pool", sizes[3], 2 * widths[-1] + 4 * dim, widths[-1] * dim)
    floats, mix = (16, 4) if config.neck == "concat" else (10, 9)
    yield Pass("neck", sizes[0], floats * dim + scores, lateral + mix * dim * dim + dim * dim)
    for i in range(len(head.layers)):
        yield Pass(f"layer{i}", sizes[0], 8 * dim + scores, 2 * dim * dim)
    matched = classes * config.prototypes
    yield Pass("match", sizes[0], 5 * dim + 8 * matched + _full_size(classes), dim * matched)


def _upernet_passes(head: UPerHead, classes: int, sizes: Sequence[Size]) -> Iterator[Pass]:
    deepest, channels = head.bottleneck.conv.in_channels, head.bottleneck.conv.out_channels
    widths = [_in_channels(layer) for layer in head.lateral]
    yield Pass("pool", sizes[3], 4 * deepest, deepest)
    yield Pass("bottleneck", sizes[3], 4 * deepest, 9 * deepest * channels)
    lateral = sum(c / 4**i for i, c in enumerate(widths)) * channels
    smooth, fuse = 1.3 * 9 * channels * channels, 4 * 9 * channels * channels
    yield Pass("pyramid", sizes[0], 26 * channels + _full_size(classes), lateral + smooth + fuse)


def _full_size(classes: int) -> int:
    """Floats of the result: sixteen pixels of the scene, each kept four times while it is resized."""
    return 16 * 4 * classes


def _in_channels(layer: nn.Module) -> int:
    conv = layer.conv if isinstance(layer, ConvNorm) else layer
    assert isinstance(conv, nn.Conv2d)
    return conv.in_channels
