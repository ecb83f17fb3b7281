"""Which tensors the Triton backend takes. Its kernels' tests are in `interpreted_ncssd.py` and `test_ncssd_gpu.py`."""

import torch

from crispseg.ops import BACKENDS, Rule, ncssd
from tests.ops.nc_ssd.test_ncssd import make_gates, make_inputs


def test_a_cpu_takes_the_torch_path():
    inputs, values = make_inputs(dtype=torch.float32)
    gates = make_gates(values)
    assert torch.equal(ncssd(*inputs, gates), BACKENDS["torch"](*inputs, gates, Rule()))
