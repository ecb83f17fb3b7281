"""The mixers of VSSD's blocks over a scene in bands.

gather: keys and values of all bands are summed into the state; queries: their sums, where DCO needs the mean of the
outputs; spread: the state is read out band by band, and the rest of the block follows. Both gather and spread project
the tokens anew: storing the projections would take about six times the map's space, and reading them back is slower
than the product that makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch
from torch import Tensor, nn

from crispseg.exact.attention import SoftmaxSum
from crispseg.exact.context import Context
from crispseg.exact.parts import Pass
from crispseg.exact.resize import Size
from crispseg.exact.stream import Parts, Stream, apply, bands, slide
from crispseg.ops import QuerySums, State, accumulate, add_query_sums, add_states, query_sums, read_out

if TYPE_CHECKING:
    from crispseg.models.vssd import AttentionMixer, Block, NCSSDMixer

KEYS = 1024  # keys that a softmax over a whole map looks at in one step
Sums = TypeVar("Sums", State, QuerySums)


class StreamedMixer(Protocol):
    seen_channels: int  # of what must be seen again once all tokens were seen, kept in seen{i}; 0 where nothing

    def passes(self, i: int, size: Size, width: int, blocks: int, rest: tuple[int, int]) -> Iterator[Pass]:
        """Of all blocks of stage `i`; `rest` is what follows the mixer in the same sweep: floats, multiply-adds."""
        ...

    def mixed(self, run: Context, block: Block, i: int) -> Stream:
        """The map after the block's mixer."""
        ...


class StreamedNCSSD:
    """Queries must be seen again where the mean of the outputs is used and their normaliser waits for the sum of all
    keys."""

    def __init__(self, mixer: NCSSDMixer) -> None:
        self.mixer = mixer
        waits = mixer.rule.fusion == "normalized" and mixer.gates().use_mean
        self.seen_channels = mixer.state if waits else 0

    def passes(self, i: int, size: Size, width: int, blocks: int, rest: tuple[int, int]) -> Iterator[Pass]:
        mixer = self.mixer
        n, inner = mixer.state, mixer.heads * mixer.head_width
        projected, mixed = 2 * inner + 2 * n + mixer.heads, inner + 2 * n
        macs = width * projected + 9 * width + 9 * mixed + n * inner
        floats = 4 * width + 2 * projected + 3 * mixed + 2 * inner
        yield Pass(f"gather{i}", size, floats, macs, blocks)
        if self.seen_channels:
            yield Pass(f"queries{i}", size, 4 * n, 2 * n, blocks)
        yield Pass(f"spread{i}", size, floats + inner + rest[0], macs + inner * width + rest[1], blocks)

    def mixed(self, run: Context, block: Block, i: int) -> Stream:
        """The state and the query sums are made before the first band."""
        mixer = self.mixer
        gates = mixer.gates()
        state, sums = self._gather(run, block, i)
        if self.seen_channels:
            sums = None
            for (c,) in run.stream(f"seen{i}", f"queries{i}"):
                sums = _add(sums, query_sums(c.flatten(1, 2), state, mixer.rule), add_query_sums)
                run.count(f"queries{i}", c.shape[1])
        sums = None if sums is None else _cast(sums, state.kv)

        def spread() -> Stream:
            for x, z, xbc, dt in self._projected(block, run.stream(f"stage{i}", f"spread{i}")):
                v, _, c, _ = mixer.tokens(xbc, dt)
                y = read_out(v, c, mixer.D, state, sums, gates, mixer.rule)
                yield (x + mixer.finish(y, z),)

        return spread()

    def _gather(self, run: Context, block: Block, i: int) -> tuple[State, QuerySums | None]:
        """The scene's state; and the query sums where they need no state (raw fusion), else the queries in seen{i}."""
        gates, rule = self.mixer.gates(), self.mixer.rule
        state: State | None = None
        sums: QuerySums | None = None
        top = 0
        for _, _, xbc, dt in self._projected(block, run.stream(f"stage{i}", f"gather{i}")):
            v, b, c, rho = self.mixer.tokens(xbc, dt)
            part = accumulate(v, b, rho, gates, rule)
            state = _add(state, part, add_states)
            if self.seen_channels:
                run.storage.maps[f"seen{i}"].write(top, c.unflatten(1, xbc.shape[1:3]))
            elif gates.use_mean:
                sums = _add(sums, query_sums(c, part, rule), add_query_sums)
            top += xbc.shape[1]
            run.count(f"gather{i}", xbc.shape[1])
        assert state is not None
        return _cast(state, part.kv), sums

    def _projected(self, block: Block, rows: Stream) -> Stream:
        """The map after the block's first convolution, with what the mixer makes of it: x, z, convolved xBC, dt."""

        def project(rows: Stream) -> Stream:
            for (x,) in _before_mixer(block, rows):
                yield (x, *self.mixer.project(block.norm1(x)))

        def convolve(x: Tensor, z: Tensor, xbc: Tensor, dt: Tensor) -> Parts:
            return x, z, self.mixer.convolve(xbc), dt

        return slide(project(rows), convolve)


class StreamedAttention:
    """Softmax attention: every band of queries meets every band of keys, so all three are kept."""

    def __init__(self, mixer: AttentionMixer) -> None:
        self.mixer, self.seen_channels = mixer, mixer.to_qkv.out_features

    def passes(self, i: int, size: Size, width: int, blocks: int, rest: tuple[int, int]) -> Iterator[Pass]:
        tokens = size[0] * size[1]
        yield Pass(f"gather{i}", size, 12 * width, 3 * width * width + 9 * width, blocks)
        floats = 6 * width + 3 * self.mixer.heads * min(max(KEYS, size[1]), tokens) + rest[0]
        yield Pass(f"spread{i}", size, floats, 2 * tokens * width + width * width + rest[1], blocks)

    def mixed(self, run: Context, block: Block, i: int) -> Stream:
        mixer, seen = self.mixer, run.storage.maps[f"seen{i}"]
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
                for span in bands(run.plan.sizes[i][0], key_rows):
                    keys = run.read(f"seen{i}", *span)
                    fused.add(heads(keys, 1), heads(keys, 2))
                top = bottom
                yield (x + mixer.to_out(fused.result().transpose(1, 2).reshape(x.shape)),)

        return spread()


def residual(conv: nn.Conv2d) -> Callable[[Tensor], Parts]:
    return lambda x: (x + apply(conv, x),)


def _before_mixer(block: Block, rows: Stream) -> Stream:
    return slide(rows, residual(block.cpe1))


def _add(total: Sums | None, part: Sums, add: Callable[[Sums, Sums], Sums]) -> Sums:
    """Sums over bands are kept in float64: there may be thousands of bands."""
    wide = _cast(part, torch.empty(0, dtype=torch.float64))
    return wide if total is None else add(total, wide)


def _cast(sums: Sums, like: Tensor) -> Sums:
    return type(sums)(*(x.to(like) if isinstance(x, Tensor) else x for x in sums))  # type: ignore[arg-type]
