"""A GPU with little shared memory through Triton's interpreter; run by `test_interpreted.py`."""

import pytest
import torch

from crispseg.bench.check import NETWORK_BOUNDS
from crispseg.ops import dispatch
from tests.conftest import relative_error
from tests.fused.models import small_crisp


@pytest.mark.parametrize("kilobytes", [99])
def test_kernels_that_fit_run_and_formulas_take_the_place_of_the_others(monkeypatch, kilobytes):
    model = small_crisp().eval()
    image = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        truth = model.double()(image.double())
    fused = model.float().fused(torch.float16, graphs=False)  # the interpreter cannot multiply bfloat16
    taken = set()
    by_kernel = dispatch.Operator.by_kernel

    def noted(self, *args, **kwargs):
        taken.add(self.name)
        return by_kernel(self, *args, **kwargs)

    monkeypatch.setattr(dispatch.Operator, "by_kernel", noted)
    monkeypatch.setattr(dispatch, "shared_memory", lambda device: kilobytes * 1024)
    dispatch.why_no_room.cache_clear()
    with dispatch.through_the_interpreter():
        found = fused(image)
    dispatch.why_no_room.cache_clear()
    assert relative_error(found, truth) < NETWORK_BOUNDS["fp16"]
    assert {"gated_mixer", "layer_norm", "best_cosines", "settle"} <= taken
    assert all(dispatch.operators()[name].room <= kilobytes * 1024 for name in taken)
