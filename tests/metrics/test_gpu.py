"""The same sums from tensors on the GPU as from arrays on the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from crispseg.metrics import BoundaryCounts, CalibrationCounts, ConfusionMatrix, spectral_ratio

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def maps():
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(0, 10, (2, 20, 30), generator=generator).repeat_interleave(9, 1).repeat_interleave(9, 2)
    prediction = target.roll((2, 1), (1, 2))
    target[torch.rand(target.shape, generator=generator) < 1e-4] = 255
    return prediction.to(torch.uint8), target.to(torch.uint8)


@pytest.mark.parametrize("kind", [ConfusionMatrix(10), BoundaryCounts(10)], ids=repr)
def test_counts(kind, maps):
    here, there = kind.empty(), kind.empty()
    here.update(*maps)
    there.update(*(labels.cuda() for labels in maps))
    for name, tensor in here.sums.items():
        assert torch.equal(tensor, there.sums[name])


def test_calibration_and_spectrum(maps):
    values = torch.randn(2, 10, *maps[1].shape[1:], generator=torch.Generator().manual_seed(1))
    here, there = CalibrationCounts(), CalibrationCounts()
    here.update(values.softmax(1), maps[1])
    there.update(values.softmax(1).cuda(), maps[1].cuda())
    for name, tensor in here.sums.items():
        torch.testing.assert_close(tensor, there.sums[name])
    torch.testing.assert_close(spectral_ratio(values.cuda()).cpu(), spectral_ratio(values))


@pytest.mark.skipif(not dist.is_nccl_available(), reason="needs NCCL")
def test_sums_travel_by_nccl(maps, tmp_path):
    matrix = ConfusionMatrix(10)
    matrix.update(*maps)
    before = matrix.counts.clone()
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        matrix.all_reduce_()
    finally:
        dist.destroy_process_group()
    assert torch.equal(matrix.counts, before) and matrix.counts.device.type == "cpu"
