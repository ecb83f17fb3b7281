"""VSSD over a scene in bands: each block sweeps its map two or three times, and overwrites it in the last sweep.

gather: keys and values of all bands are summed into the state; queries: their sums, where DCO needs the mean of the
outputs; spread: the state is read out band by band, and the rest of the block follows. Both gather and spread
project the tokens anew: storing the projections would take about six times the map's space, and reading them back
is slower than the product that makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from crispseg.exact.attention import SoftmaxSum
from crispseg.exact.context import Context
from crispseg.exact.passes import KEYS, seen_channels
from crispseg.exact.stream import Parts, Stream, apply, bands, convolution, slide
from crispseg.models.vssd import VSSD, AttentionMixer, Block, NCSSDMixer, Stage, Stem
from crispseg.ops import QuerySums, State, accumulate, add_query_sums, add_states, query_sums, read_out

ReadRows = Callable[[int, int], Tensor]
Sums = TypeVar("Sums", State, QuerySums)


def run_backbone(run: Context, backbone: VSSD, read_rows: ReadRows) -> None:
    """Leave the four stages' maps, before their output norms, in the run's maps stage0 ... stage3."""
    run.open("stage0")
    run.fill("stage0", _stem(backbone.patch_embed, _image(run, read_rows)), "stem")
    for i, stage in enumerate(backbone.layers):
        assert isinstance(stage, Stage)
        _run_blocks(run, stage, i)
        if stage.downsample is not None:
            run.open(f"stage{i + 1}")
            rows = slide(run.stream(f"stage{i}", f"down{i}", stride=2), _alone(stage.downsample), stride=2)
            run.fill(f"stage{i + 1}", rows, f"down{i}")


def stage_rows(run: Context, backbone: VSSD, i: int, top: int, bottom: int) -> Tensor:
    """Rows of a stage's feature map as the heads take it: (1, rows, W, C), normalised."""
    return getattr(backbone, f"outnorm{i}")(run.read(f"stage{i}", top, bottom))


def _image(run: Context, read_rows: ReadRows) -> Stream:
    for top, bottom in bands(run.plan.height, 4 * run.plan.bands["stem"]):
        rows = read_rows(top, bottom)  # (bands, rows, W)
        yield (rows.to(run.like).permute(1, 2, 0)[None],)


def _stem(stem: Stem, rows: Stream) -> Stream:
    rows = slide(rows, convolution(stem.conv1), stride=2)
    rows = slide(rows, lambda x: (x + apply(stem.conv2, x),), radius=2)
    return slide(rows, convolution(stem.conv3), stride=2)


def _run_blocks(run: Context, stage: Stage, i: int) -> None:
    seen = seen_channels(stage) > 0
    if seen:
        run.open(f"seen{i}")
    for block in stage.blocks:
        assert isinstance(block, Block)
        mix = _ncssd if isinstance(block.attn, NCSSDMixer) else _attention
        run.fill(f"stage{i}", _after_mixer(block, mix(run, block, i)), f"spread{i}")
    if seen:
        run.close(f"seen{i}")


def _before_mixer(block: Block, rows: Stream) -> Stream:
    return slide(rows, _residual(block.cpe1))


def _after_mixer(block: Block, rows: Stream) -> Stream:
    for (x,) in slide(rows, _residual(block.cpe2)):
        yield (x + block.mlp(block.norm2(x)),)


def _ncssd(run: Context, block: Block, i: int) -> Stream:
    """The map after the block's mixer; the state and the query sums are made before its first band."""
    mixer = block.attn
    assert isinstance(mixer, NCSSDMixer)
    gates = mixer.gates()
    state, sums = _gather(run, block, mixer, i)
    if f"seen{i}" in run.storage.maps:
        sums = None
        for (c,) in run.stream(f"seen{i}", f"queries{i}"):
            sums = _add(sums, query_sums(c.flatten(1, 2), state, gates, mixer.rule), add_query_sums)
            run.count(f"queries{i}", c.shape[1])
    sums = None if sums is None else _cast(sums, state.kv)

    def spread() -> Stream:
        for x, z, xbc, dt in _projected(block, mixer, run.stream(f"stage{i}", f"spread{i}")):
            v, _, c, _ = mixer.tokens(xbc, dt)
            y = read_out(v, c, mixer.D, state, sums, gates, mixer.rule)
            yield (x + mixer.finish(y, z),)

    return spread()


def _gather(run: Context, block: Block, mixer: NCSSDMixer, i: int) -> tuple[State, QuerySums | None]:
    """The scene's state; and the query sums where they need no state (raw fusion), else the queries in seen{i}."""
    gates, rule = mixer.gates(), mixer.rule
    state: State | None = None
    sums: QuerySums | None = None
    top = 0
    for _, _, xbc, dt in _projected(block, mixer, run.stream(f"stage{i}", f"gather{i}")):
        v, b, c, rho = mixer.tokens(xbc, dt)
        part = accumulate(v, b, rho, gates, rule)
        state = _add(state, part, add_states)
        if f"seen{i}" in run.storage.maps:
            run.storage.maps[f"seen{i}"].write(top, c.unflatten(1, xbc.shape[1:3]))
        elif gates.use_mean:
            sums = _add(sums, query_sums(c, part, gates, rule), add_query_sums)
        top += xbc.shape[1]
        run.count(f"gather{i}", xbc.shape[1])
    assert state is not None
    return _cast(state, part.kv), sums


def _projected(block: Block, mixer: NCSSDMixer, rows: Stream) -> Stream:
    """The map after the block's first convolution, with what the mixer makes of it: x, z, convolved xBC, dt."""

    def project(rows: Stream) -> Stream:
        for (x,) in _before_mixer(block, rows):
            yield (x, *mixer.project(block.norm1(x)))

    def convolve(x: Tensor, z: Tensor, xbc: Tensor, dt: Tensor) -> Parts:
        return x, z, mixer.convolve(xbc), dt

    return slide(project(rows), convolve)


def _attention(run: Context, block: Block, i: int) -> Stream:
    """The map after softmax attention: every band of queries meets every band of keys."""
    mixer, seen = block.attn, run.storage.maps[f"seen{i}"]
    assert isinstance(mixer, AttentionMixer)
    qkv = ((mixer.to_qkv(block.norm1(x)),) for (x,) in _before_mixer(block, run.stream(f"stage{i}", f"gather{i}")))
    run.fill(f"seen{i}", qkv, f"gather{i}")
    key_rows = max(1, KEYS // seen.plan.width)

    def heads(x: Tensor, part: int) -> Tensor:
        x = x.unflatten(-1, (3, mixer.heads, -1))[:, :, :, part]  # (1, rows, W, heads, d)
        return x.flatten(1, 2).transpose(1, 2)  # (1, heads, L, d)

    def spread() -> Stream:
        top = 0
        for (x,) in _before_mixer(block, run.stream(f"stage{i}", f"spread{i}")):
            bottom = top + x.shape[1]
            fused = SoftmaxSum(heads(run.read(f"seen{i}", top, bottom), 0))
            for (keys,) in _all_keys(run, i, key_rows):
                fused.add(heads(keys, 1), heads(keys, 2))
            top = bottom
            yield (x + mixer.to_out(fused.result().transpose(1, 2).reshape(x.shape)),)

    return spread()


def _all_keys(run: Context, i: int, rows: int) -> Stream:
    for top, bottom in bands(run.plan.sizes[i][0], rows):
        yield (run.read(f"seen{i}", top, bottom),)


def _residual(conv: torch.nn.Conv2d) -> Callable[[Tensor], Parts]:
    return lambda x: (x + apply(conv, x),)


def _alone(module: torch.nn.Module) -> Callable[[Tensor], Parts]:
    return lambda x: (module(x),)


def _add(total: Sums | None, part: Sums, add: Callable[[Sums, Sums], Sums]) -> Sums:
    """Sums over bands are kept in float64: there may be thousands of bands."""
    wide = _cast(part, torch.empty(0, dtype=torch.float64))
    return wide if total is None else add(total, wide)


def _cast(sums: Sums, like: Tensor) -> Sums:
    return type(sums)(*(x.to(like) if isinstance(x, Tensor) else x for x in sums))  # type: ignore[arg-type]
