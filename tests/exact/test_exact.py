"""Streaming equals the model applied to the whole array."""

from __future__ import annotations

import functools
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from crispseg import exact
from crispseg.errors import UserError
from crispseg.models.registry import create_model
from tests.exact.models import CASES, make

ON_DISK, IN_MEMORY = 0, 2**30
cached = functools.cache(make)


def whole(model: torch.nn.Module, image: Tensor) -> Tensor:
    with torch.no_grad():
        return model(image[None])[0]


def relative_error(got: Tensor, wanted: Tensor) -> float:
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    return float((got - wanted).abs().max() / wanted.abs().max())


@settings(max_examples=100, deadline=None)
@given(
    case=st.sampled_from(sorted(CASES)),
    height=st.integers(1, 80),
    width=st.integers(1, 48),
    band=st.none() | st.integers(1, 12),
    memory_limit=st.sampled_from([ON_DISK, IN_MEMORY]),
)
@example("topdown", 1, 1, None, ON_DISK)
@example("concat", 1, 33, 1, IN_MEMORY)
@example("upernet", 33, 1, 1, ON_DISK)
@example("attention", 65, 40, 1, ON_DISK)
def test_equals_the_whole_image_in_float64(
    case: str, height: int, width: int, band: int | None, memory_limit: int
) -> None:
    model = cached(case, torch.float64)
    image = torch.randn(2, height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(height))
    got = exact.logits(model, image, band=band, memory_limit=memory_limit)
    assert relative_error(got, whole(model, image)) < 1e-10


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("height", "width", "band"), [(203, 77, 5), (128, 96, None)])
def test_equals_the_whole_image_in_float32(case: str, height: int, width: int, band: int | None) -> None:
    model = cached(case)
    image = torch.randn(2, height, width, generator=torch.Generator().manual_seed(1))
    assert relative_error(exact.logits(model, image, band=band), whole(model, image)) < 1e-5


def test_the_scene_is_one_image_and_not_its_bands() -> None:
    """The equalities above would mean little if a pixel did not depend on far-away rows."""
    model = cached("topdown")
    image = torch.randn(2, 256, 32, generator=torch.Generator().manual_seed(2))
    changed = image.clone()
    changed[:, 192:] += 1.0
    moved = exact.logits(model, changed, band=2)[:, :32] - exact.logits(model, image, band=2)[:, :32]
    assert moved.abs().max() > 1e-3


def test_the_published_variant_too() -> None:
    torch.manual_seed(0)
    model = create_model("crisp_nano", 6, 3).eval()
    image = torch.randn(3, 100, 130)
    assert relative_error(exact.logits(model, image, band=3), whole(model, image)) < 1e-5


def test_float16_maps_stay_close() -> None:
    model = cached("topdown")
    image = torch.randn(2, 90, 70, generator=torch.Generator().manual_seed(3))
    got = exact.logits(model, image, spill_precision="float16", memory_limit=ON_DISK)
    assert 0 < relative_error(got, whole(model, image)) < 0.02


def test_under_autocast_it_stays_close() -> None:
    model = cached("topdown")
    image = torch.randn(2, 90, 70, generator=torch.Generator().manual_seed(3))
    with torch.autocast("cpu", torch.bfloat16):
        got = exact.logits(model, image, band=4)
    error = (got.float() - whole(model, image)).abs()
    assert error.mean() / whole(model, image).abs().mean() < 0.05


def test_rows_are_read_and_written_once_and_in_order() -> None:
    image = torch.randn(2, 101, 20)
    read: list[int] = []
    written: list[int] = []
    fractions: list[float] = []

    def read_rows(top: int, bottom: int) -> Tensor:
        read.extend(range(top, bottom))
        return image[:, top:bottom]

    def write_rows(top: int, rows: Tensor) -> None:
        assert rows.shape[0] == 3 and rows.shape[2] == 20
        written.extend(range(top, top + rows.shape[1]))

    exact.segment_stream(cached("concat"), read_rows, 101, 20, write_rows, band=3, progress=fractions.append)
    assert read == written == list(range(101))
    assert fractions == sorted(fractions)
    assert len(fractions) > 50 and fractions[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("case", ["topdown", "raw", "no calibration", "attention", "upernet"])
def test_progress_ends_at_one(case: str) -> None:
    fractions: list[float] = []
    exact.logits(cached(case), torch.randn(2, 70, 30), band=2, progress=fractions.append)
    assert fractions[-1] == pytest.approx(1.0)
    assert len(set(fractions)) > 0.9 * len(fractions)  # no pass is miscounted past the end


class _LargestTensor(TorchDispatchMode):
    """Sees every tensor that any operation makes."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else (result,):
            if isinstance(x, Tensor):
                self.largest = max(self.largest, x.numel())
        return result


@pytest.mark.parametrize("case", ["topdown", "concat", "attention", "upernet"])
def test_no_tensor_grows_with_the_height(case: str) -> None:
    largest = []
    for height in (64, 512):
        with mock.patch("crispseg.exact.mixers.KEYS", 8), _LargestTensor() as seen:
            exact.segment_stream(
                cached(case),
                lambda top, bottom: torch.zeros(2, bottom - top, 128),
                height,
                128,
                lambda top, rows: None,
                band=2,
                memory_limit=ON_DISK,
            )
        largest.append(seen.largest)
    assert largest[1] <= 1.02 * largest[0]


class _Interrupt(BaseException):
    pass


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, _Interrupt, None])
def test_nothing_is_left_behind(error: type[BaseException] | None, tmp_path: Path) -> None:
    names: list[str] = []

    def progress(fraction: float) -> None:
        names.extend(p.name for p in tmp_path.iterdir())
        if error is not None and fraction > 0.5:
            raise error

    def run() -> None:
        exact.logits(cached("topdown"), torch.randn(2, 64, 64), memory_limit=0, spill=tmp_path, progress=progress)

    if error is None:
        run()
    else:
        with pytest.raises(error):
            run()
    # the files have no names even while they are used, so not even a killed process leaves one
    assert names == [] and list(tmp_path.iterdir()) == []


def test_mistakes_are_explained(tmp_path: Path) -> None:
    model, image = cached("topdown"), torch.randn(2, 40, 40)
    with pytest.raises(UserError, match=r"model\.eval\(\)"):
        exact.logits(make("topdown").train(), image)
    with pytest.raises(UserError, match="'Conv2d' cannot run a scene as one image"):
        exact.logits(torch.nn.Conv2d(2, 3, 1), image)
    with pytest.raises(UserError, match="no pixels"):
        exact.logits(model, image[:, :0])
    with pytest.raises(UserError, match="at least one row"):
        exact.logits(model, image, band=0)
    with pytest.raises(UserError, match="unknown precision 'float61'; did you mean 'float16'"):
        exact.logits(model, image, spill_precision="float61")
    with pytest.raises(UserError, match="cannot keep features in .*missing"):
        exact.logits(model, image, memory_limit=0, spill=tmp_path / "missing")
    with pytest.raises(UserError, match="not finite in rows 0 to 39"):
        exact.logits(model, torch.where(torch.arange(40) == 7, torch.nan, image))
    with pytest.raises(ValueError, match=r"gave the shape \(1, 40, 40\), not \(2, 40, 40\)"):
        exact.logits(model, image[:1])


def test_too_little_disk_is_seen_before_the_work(tmp_path: Path) -> None:
    read: list[int] = []
    with (
        mock.patch("shutil.disk_usage", return_value=mock.Mock(free=1000)),
        pytest.raises(UserError, match=r"needs 1\d\.\d GB of temporary files"),
    ):
        exact.segment_stream(
            cached("topdown"),
            lambda top, bottom: read.append(top),  # type: ignore[arg-type, return-value]
            40000,
            40000,
            lambda top, rows: None,
            spill=tmp_path,
        )
    assert read == []


def test_estimate_grows_as_it_should() -> None:
    model = cached("topdown")
    small, large = exact.estimate(model, 2000, 2000), exact.estimate(model, 40000, 20000)
    assert small.disk_bytes == small.traffic_bytes == 0
    assert large.traffic_bytes > large.disk_bytes > 10**9
    assert large.memory_bytes <= 2**31
    assert large.seconds > 50 * small.seconds > 0  # two hundred times the pixels, on a machine that is not idle
    half = exact.estimate(model, 40000, 20000, spill_precision="float16")
    assert half.disk_bytes < large.disk_bytes


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("case", ["topdown", "concat", "raw", "attention", "upernet"])
def test_equals_the_whole_image_on_cuda(case: str) -> None:
    model = make(case).cuda()
    image = torch.randn(2, 203, 131, device="cuda")
    got = exact.logits(model, image, band=5, memory_limit=ON_DISK)
    assert got.is_cuda
    assert relative_error(got, whole(model, image)) < 1e-5
