"""The building blocks, each against torch on the whole map."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from crispseg.errors import UserError
from crispseg.exact.attention import SoftmaxSum
from crispseg.exact.parts import StreamedModel
from crispseg.exact.plan import MapPlan, make_plan
from crispseg.exact.resize import BandResize
from crispseg.exact.store import Storage, stream_map
from crispseg.exact.stream import Stream, apply, convolution, slide
from tests.exact.models import make


def cut(x: Tensor, sizes: list[int]) -> Stream:
    """A map (1, H, W, C) in bands of the given heights, repeated."""
    top = 0
    while top < x.shape[1]:
        for size in sizes:
            if top < x.shape[1]:
                yield (x[:, top : top + size],)
                top += size


def random_map(height: int, width: int, channels: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(1, height, width, channels, generator=torch.Generator().manual_seed(height), dtype=dtype)


heights = st.lists(st.integers(1, 7), min_size=1, max_size=4)


@settings(max_examples=80, deadline=None)
@given(height=st.integers(1, 40), sizes=heights, kernel=st.sampled_from([1, 3, 5]), stride=st.integers(1, 4))
def test_slide_equals_the_convolution_of_the_whole(height: int, sizes: list[int], kernel: int, stride: int) -> None:
    conv = nn.Conv2d(2, 3, kernel, stride=stride, padding=kernel // 2).double()
    x = random_map(height, 6, 2)
    with torch.no_grad():
        got = torch.cat([y for (y,) in slide(cut(x, sizes), convolution(conv), kernel // 2, stride)], dim=1)
        torch.testing.assert_close(got, apply(conv, x), rtol=1e-12, atol=1e-12)


@settings(max_examples=80, deadline=None)
@given(
    source=st.integers(1, 30),
    target=st.integers(1, 90),
    widths=st.tuples(st.integers(1, 9), st.integers(1, 20)),
    sizes=heights,
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_resize_equals_that_of_the_whole(
    source: int, target: int, widths: tuple[int, int], sizes: list[int], dtype: torch.dtype
) -> None:
    x = random_map(source, widths[0], 2, dtype)
    size = (target, widths[1])
    whole = functional.interpolate(x.permute(0, 3, 1, 2), size=size, mode="bilinear").permute(0, 2, 3, 1)
    by_band = BandResize((source, widths[0]), size, dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    streamed = torch.cat([y for (y,) in by_band.stream(cut(x, sizes))], dim=1)
    torch.testing.assert_close(streamed, whole, rtol=0, atol=tolerance)
    top, bottom = target // 3, target // 3 + 1
    pulled = by_band.pull(lambda a, b: x[:, a:b], top, bottom)
    torch.testing.assert_close(pulled, whole[:, top:bottom], rtol=0, atol=tolerance)


@settings(max_examples=40, deadline=None)
@given(keys=st.integers(1, 60), band=st.integers(1, 20), size=st.sampled_from([0.1, 1.0, 100.0]))
def test_softmax_over_bands_equals_attention(keys: int, band: int, size: float) -> None:
    generator = torch.Generator().manual_seed(keys)
    q, k, v = (torch.randn(1, 2, n, 4, generator=generator, dtype=torch.float64) for n in (5, keys, keys))
    fused = SoftmaxSum(size * q)
    for start in range(0, keys, band):
        fused.add(k[:, :, start : start + band], v[:, :, start : start + band])
    torch.testing.assert_close(fused.result(), functional.scaled_dot_product_attention(size * q, k, v))


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_map_returns_what_was_stored(on_disk: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    x = random_map(10, 3, 2).to(dtype)
    with Storage(dtype, tmp_path) as storage:
        stored = storage.open(MapPlan("map", 10, 3, 2, on_disk))
        for top, bottom in ((6, 10), (0, 4), (4, 6)):  # in any order
            stored.write(top, x[:, top:bottom])
        assert torch.equal(torch.cat([y for (y,) in stream_map(stored, 3, x)], dim=1), x)
        first = stored.read(0, 2)
        stored.write(0, x[:, 4:6])
        assert torch.equal(first, x[:, :2])  # what was read does not change with the map
        assert torch.equal(stored.read(0, 2), x[:, 4:6])
    assert list(tmp_path.iterdir()) == []


def test_a_value_beyond_float16_is_an_error() -> None:
    with Storage(torch.float16, None) as storage, pytest.raises(UserError, match="too large for float16"):
        storage.open(MapPlan("map", 1, 1, 1, False)).write(0, torch.full((1, 1, 1, 1), 1e6))


def test_a_disk_that_fills_up_is_explained() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no device that is always full")
    with (
        mock.patch.object(tempfile, "TemporaryFile", lambda dir: full.open("r+b")),
        pytest.raises(UserError, match="no disk space left for the features of map"),
        Storage(torch.float32, None) as storage,
    ):
        storage.open(MapPlan("map", 8, 8, 8, True)).write(0, torch.ones(1, 8, 8, 8))


def test_bands_depend_on_the_width_alone() -> None:
    model = make("topdown")
    parts, like = StreamedModel(model.backbone.streamed(), model.head.streamed()), next(model.parameters())
    plans = [
        make_plan(parts, like, height, 3000, band=None, memory_limit=2**28, kept=torch.float32)
        for height in (4000, 400000)
    ]
    assert plans[0].bands.keys() == plans[1].bands.keys()
    for name, p in plans[0].passes.items():
        assert plans[0].bands[name] == min(plans[1].bands[name], p.size[0])
    for plan in plans:
        assert max(plan.map_bytes, plan.band_bytes) <= 0.375 * 2**28
    assert plans[1].disk_bytes > 50 * plans[0].disk_bytes
