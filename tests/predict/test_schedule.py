import logging

import numpy as np
import pytest
import torch

from crispseg.errors import UserError
from crispseg.predict.evaluate import Evaluator
from crispseg.predict.schedule import InBatches, SideBySide, Tile
from crispseg.raster.source import Pixels
from tests.predict.standins import StandIn

CPU = torch.device("cpu")


def make_tiles(count, empty=()):
    for k in range(count):
        present = np.full((6, 6), k not in empty)
        yield Tile(0, k, Pixels(np.full((3, 6, 6), 7 * k, np.uint8), present))


def same_as_one_by_one(schedule, evaluator, count, empty=()):
    results = list(schedule.stream(make_tiles(count, empty)))
    assert [scored.tile.column for scored in results] == list(range(count))
    for tile, scores in results:
        if tile.column in empty:
            assert scores is None
        else:
            assert torch.equal(scores, evaluator([tile.pixels.values])[0])


@pytest.mark.parametrize("kind", [SideBySide, InBatches])
@pytest.mark.parametrize("size", [1, 2, 3, 16, None])
def test_all_tiles_come_back_in_order(kind, size):
    evaluator = Evaluator(StandIn(), CPU)
    same_as_one_by_one(kind(evaluator, size), evaluator, 11, empty=(0, 1, 4, 10))


@pytest.mark.parametrize("kind", [SideBySide, InBatches])
def test_nothing_but_empty_tiles(kind):
    evaluator = Evaluator(StandIn(), CPU)
    same_as_one_by_one(kind(evaluator, 2), evaluator, 9, empty=range(9))


def test_out_of_memory_halves_the_batch(caplog):
    model = StandIn()
    sizes = []

    def before(x):
        sizes.append(len(x))
        if len(x) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    model.before = before
    evaluator = Evaluator(model, CPU)
    with caplog.at_level(logging.WARNING):
        same_as_one_by_one(InBatches(evaluator, 8), evaluator, 10)
    assert sizes[:3] == [8, 4, 2]
    assert "2 tiles at a time" in caplog.text


def test_out_of_memory_on_the_cpu_halves_the_tiles_side_by_side():
    model = StandIn()
    failures = iter([MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")])

    def before(x):
        error = next(failures, None)
        if error:
            raise error

    model.before = before
    evaluator = Evaluator(model, CPU)
    schedule = SideBySide(evaluator, 4)
    same_as_one_by_one(schedule, evaluator, 10)
    assert schedule.threads == 1


@pytest.mark.parametrize("kind", [SideBySide, InBatches])
def test_no_memory_for_one_tile_is_explained(kind):
    model = StandIn()

    def before(x):
        raise torch.OutOfMemoryError("no")

    model.before = before
    with pytest.raises(UserError, match="6 x 6 pixels; choose a smaller tile size"):
        list(kind(Evaluator(model, CPU), 4).stream(make_tiles(3)))


@pytest.mark.parametrize("kind", [SideBySide, InBatches])
def test_other_errors_are_not_swallowed(kind):
    model = StandIn()

    def before(x):
        raise RuntimeError("a bug")

    model.before = before
    with pytest.raises(RuntimeError, match="a bug"):
        list(kind(Evaluator(model, CPU), 4).stream(make_tiles(3)))


def test_the_number_of_threads_is_restored():
    before = torch.get_num_threads()
    list(SideBySide(Evaluator(StandIn(), CPU), 3).stream(make_tiles(5)))
    assert torch.get_num_threads() == before


def test_scarce_memory_means_fewer_tiles_side_by_side(monkeypatch):
    from crispseg import memory

    monkeypatch.setattr(memory, "resident", lambda: 1000)
    monkeypatch.setattr(memory, "peak", lambda: 3000)
    monkeypatch.setattr(memory, "free", lambda: 10_000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    evaluator = Evaluator(StandIn(), CPU)
    schedule = SideBySide(evaluator, None)
    same_as_one_by_one(schedule, evaluator, 10, empty=(0,))
    assert schedule.threads == 3  # 0.7 * 10000 / 2000


@pytest.mark.parametrize(("scene_tiles", "size"), [(1, 1), (3, 2), (8, 8), (None, 2**24 // 36)])
def test_a_batch_is_no_larger_than_the_scene(scene_tiles, size):
    schedule = InBatches(Evaluator(StandIn(), CPU), None, scene_tiles)
    (tile,) = make_tiles(1)
    assert schedule._fitting(tile) == 2 ** (size.bit_length() - 1)
