"""Sums over objects, files and processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from crispseg.errors import UserError
from crispseg.metrics import BoundaryCounts, CalibrationCounts, ConfusionMatrix

EMPTY = (ConfusionMatrix(3), BoundaryCounts(3, tolerance=2), CalibrationCounts(bins=5))


def filled(seed, kind):
    generator = np.random.default_rng(seed)
    prediction, target = generator.integers(0, 3, (2, 8, 9))
    accumulator = kind.empty()
    if isinstance(accumulator, CalibrationCounts):
        # sixteenths add up exactly in any order
        accumulator.update_maps(generator.integers(0, 17, (8, 9)) / 16, prediction == target)
    else:
        accumulator.update(prediction, target)
    return accumulator


def same(a, b):
    return a.settings == b.settings and all(torch.equal(a.sums[name], b.sums[name]) for name in a.sums)


@pytest.mark.parametrize("kind", EMPTY, ids=repr)
def test_state_and_json_bring_back_the_sums(kind):
    one = filled(0, kind)
    again = kind.empty()
    again.load_state_dict(one.state_dict())
    assert same(one, again)
    assert same(one, type(one).from_dict(json.loads(json.dumps(one.to_dict()))))
    state = one.state_dict()
    one += again
    assert all(torch.equal(state[name], again.sums[name]) for name in state), "the state must be a copy"


@pytest.mark.parametrize("kind", EMPTY, ids=repr)
def test_adding_leaves_the_parts_alone(kind):
    one, other = filled(0, kind), filled(1, kind)
    before = one.state_dict()
    total = one + other
    assert same(total, other + one) and not same(total, one)
    assert all(torch.equal(before[name], one.sums[name]) for name in before)


@pytest.mark.parametrize("kind", EMPTY, ids=repr)
def test_sums_of_many_images_stay_exact(kind):
    """2^24 and one more is one more: a float32 would not hold it."""
    total, one = kind.empty(), filled(0, kind)
    for tensor in total.sums.values():
        tensor += 2**24
    total += one
    for name, tensor in total.sums.items():
        assert [x - 2**24 for x in tensor.flatten().tolist()] == one.sums[name].flatten().tolist()


def test_what_does_not_belong_together_is_not_added():
    with pytest.raises(UserError, match="cannot add"):
        ConfusionMatrix(3) + ConfusionMatrix(4)
    with pytest.raises(UserError, match="cannot add"):
        BoundaryCounts(3, tolerance=2) + BoundaryCounts(3, tolerance=3)
    with pytest.raises(UserError, match="cannot add"):
        ConfusionMatrix(3) + CalibrationCounts()
    with pytest.raises(UserError, match="do not belong"):
        ConfusionMatrix(3).load_state_dict(ConfusionMatrix(4).state_dict())


@pytest.mark.parametrize("kind", EMPTY, ids=repr)
def test_alone_there_is_nothing_to_reduce(kind):
    one = filled(0, kind)
    before = one.state_dict()
    assert one.all_reduce_() is one
    assert all(torch.equal(before[name], one.sums[name]) for name in before)


PROCESS = """
import json, sys
import torch.distributed as dist
sys.path.insert(0, sys.argv[1])
from test_accumulate import EMPTY, filled
rank = int(sys.argv[3])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
reduced = [filled(rank, kind).all_reduce_().to_dict() for kind in EMPTY]
print(json.dumps(reduced))
dist.destroy_process_group()
"""


def test_two_processes_give_the_sums_of_one(tmp_path):
    here, meeting = os.path.dirname(__file__), str(tmp_path / "meeting")
    processes = [
        subprocess.Popen([sys.executable, "-c", PROCESS, here, meeting, str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    expected = [(filled(0, kind) + filled(1, kind)).to_dict() for kind in EMPTY]
    for output in outputs:
        assert json.loads(output.splitlines()[-1]) == json.loads(json.dumps(expected))
