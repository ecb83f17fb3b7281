"""VSSD over a scene in bands: each block sweeps its map two or three times, and overwrites it in the last sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from crispseg.exact.context import Context
from crispseg.exact.mixers import StreamedMixer, residual
from crispseg.exact.parts import Kept, Pass, ReadRows
from crispseg.exact.resize import Size
from crispseg.exact.stream import Parts, Stream, apply, bands, convolution, slide

if TYPE_CHECKING:
    from crispseg.models.vssd import VSSD, Block, Stem


class StageFeatures:
    """The stages' maps as the heads take them."""

    def __init__(self, run: Context, backbone: VSSD) -> None:
        self.context, self.backbone = run, backbone

    def rows(self, stage: int, top: int, bottom: int) -> Tensor:
        return getattr(self.backbone, f"outnorm{stage}")(self.context.read(f"stage{stage}", top, bottom))

    def close(self) -> None:
        for stage in range(len(self.backbone.layers)):
            self.context.close(f"stage{stage}")


class StreamedVSSD:
    """Leaves the four stages' maps, before their output norms, in the run's maps stage0 ... stage3."""

    def __init__(self, backbone: VSSD) -> None:
        self.backbone, self.in_channels = backbone, backbone.in_channels
        stages: list[Any] = list(backbone.layers)
        self.stages = stages
        self.mixers: list[list[StreamedMixer]] = [[block.attn.streamed() for block in s.blocks] for s in stages]

    def passes(self, sizes: Sequence[Size]) -> Iterator[Pass]:
        width, bands = self.backbone.config.width, self.backbone.in_channels
        half = width // 2
        stem = 4 * 9 * half * (bands + 2 * half) + 9 * half * 4 * width + 4 * width * width
        yield Pass("stem", sizes[0], 32 * bands + 4 * 7 * half + 14 * width, stem)
        for i, (stage, mixers) in enumerate(zip(self.stages, self.mixers, strict=True)):
            c = self.backbone.widths[i]
            yield from mixers[0].passes(i, sizes[i], c, len(mixers), _second_half(self.backbone, c))
            if stage.downsample is not None:
                # one pixel of the next map is made of four of this one, eight times as wide in the bottleneck
                yield Pass(f"down{i}", sizes[i + 1], 4 * 26 * c + 20 * c, 4 * 8 * c * c + 9 * 8 * c + 16 * c * c)

    def maps(self, sizes: Sequence[Size]) -> Iterator[Kept]:
        for i, mixers in enumerate(self.mixers):
            yield Kept(f"stage{i}", sizes[i], self.backbone.widths[i], sweeps=3 * len(mixers) + 3)
            if seen := mixers[0].seen_channels:
                yield Kept(f"seen{i}", sizes[i], seen, sweeps=2 * len(mixers), brief=True)

    def run(self, run: Context, read_rows: ReadRows) -> StageFeatures:
        run.open("stage0")
        run.fill("stage0", _stem(self.backbone.patch_embed, _image(run, read_rows)), "stem")
        for i, stage in enumerate(self.stages):
            self._run_blocks(run, i)
            if stage.downsample is not None:
                run.open(f"stage{i + 1}")
                rows = slide(run.stream(f"stage{i}", f"down{i}", stride=2), _alone(stage.downsample), stride=2)
                run.fill(f"stage{i + 1}", rows, f"down{i}")
        return StageFeatures(run, self.backbone)

    def _run_blocks(self, run: Context, i: int) -> None:
        seen = self.mixers[i][0].seen_channels > 0
        if seen:
            run.open(f"seen{i}")
        for block, mixer in zip(self.stages[i].blocks, self.mixers[i], strict=True):
            run.fill(f"stage{i}", _after_mixer(block, mixer.mixed(run, block, i)), f"spread{i}")
        if seen:
            run.close(f"seen{i}")


def _second_half(backbone: VSSD, c: int) -> tuple[int, int]:
    """Floats and multiply-adds of a block's MLP."""
    ratio = backbone.config.mlp_ratio
    return (2 * ratio + 4) * c, 2 * ratio * c * c + 9 * c


def _image(run: Context, read_rows: ReadRows) -> Stream:
    for top, bottom in bands(run.plan.height, 4 * run.plan.bands["stem"]):
        rows = read_rows(top, bottom)  # (bands, rows, W)
        yield (rows.to(run.like).permute(1, 2, 0)[None],)


def _stem(stem: Stem, rows: Stream) -> Stream:
    rows = slide(rows, convolution(stem.conv1), stride=2)
    rows = slide(rows, lambda x: (x + apply(stem.conv2, x),), radius=2)
    return slide(rows, convolution(stem.conv3), stride=2)


def _after_mixer(block: Block, rows: Stream) -> Stream:
    for (x,) in slide(rows, residual(block.cpe2)):
        yield (x + block.mlp(block.norm2(x)),)


def _alone(module: nn.Module) -> Any:
    def function(x: Tensor) -> Parts:
        return (module(x),)

    return function
