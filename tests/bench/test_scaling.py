import pytest
from hypothesis import given
from hypothesis import strategies as st

from crispseg.bench.result import Result
from crispseg.bench.scaling import bench_scaling, equal_pixels, per_pixel, verdict
from crispseg.errors import UserError
from tests.bench.conftest import TINY, model_cell


def test_batches_shrink_as_sizes_grow():
    assert equal_pixels([1024, 256, 512, 4096], 4096**2) == [(256, 256), (512, 64), (1024, 16), (4096, 1)]


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=5), st.integers(1, 2**26))
def test_pixels_are_equal_as_nearly_as_whole_images_allow(sizes, pixels):
    for size, batch in equal_pixels(sizes, pixels):
        assert batch >= 1
        assert abs(batch * size**2 - pixels) <= size**2 / 2 or batch == 1


def test_ratios_and_verdict():
    sizes = {256: (16, 8.0, 16000), 512: (4, 4.0, 16000), 1024: (1, 4.4, 16000), 2048: (1, 24.0, 64000)}
    cells = [
        model_cell(size=size, batch=batch, milliseconds=ms, peak_bytes=peak)
        for size, (batch, ms, peak) in sizes.items()
    ]
    cells.append(model_cell(size=4096, milliseconds=None, status="wrong"))
    rows = {row.size: row for row in per_pixel(cells)}
    assert set(rows) == set(sizes)
    assert rows[512].nanoseconds == pytest.approx(4e6 / 2**20)
    assert rows[512].bytes == pytest.approx(16000 / 2**20)
    assert [rows[size].time_ratio for size in sizes] == pytest.approx([2.0, 1.0, 1.1, 1.5])
    assert [rows[size].memory_ratio for size in sizes] == pytest.approx([1.0, 1.0, 1.0, 1.0])
    assert [rows[size].linear for size in sizes] == [False, True, True, False]
    (sentence,) = verdict(list(rows.values()))
    assert "not linear" in sentence
    assert "1.50 x the time" in sentence
    (sentence,) = verdict([rows[512], rows[1024]])
    assert "a fp32 eager: linear" in sentence


def test_memory_alone_can_spoil_it():
    small, large = (model_cell(size=s, batch=b, peak_bytes=p) for s, b, p in ((512, 4, 1000), (1024, 1, 1200)))
    assert [row.linear for row in per_pixel([small, large])] == [True, False]


def test_without_512_the_smallest_is_the_base():
    rows = per_pixel([model_cell(size=64, batch=4), model_cell(size=128)])
    assert [row.base_size for row in rows] == [64, 64]


def test_a_run(settings):
    import dataclasses

    kept: list[Result] = []
    several = dataclasses.replace(settings, sizes=(32, 64))
    result = bench_scaling([TINY], several, say=lambda text: None, keep=kept.append)
    assert [(cell.size, cell.batch, cell.status) for cell in result.cells] == [(32, 4, "ok"), (64, 1, "ok")]
    assert [row.size for row in result.per_pixel] == [32, 64]
    assert kept == [result]
    with pytest.raises(UserError, match="which model"):
        bench_scaling([], several)
