import os

import hypothesis
import pytest
import torch

# One thread per test process: the suite runs in parallel, and two threads on shared cores only wait for each other.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
hypothesis.settings.register_profile("suite", deadline=None, max_examples=30)
hypothesis.settings.load_profile("suite")


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


def relative_error(x: torch.Tensor, truth: torch.Tensor) -> float:
    return ((x.double() - truth.double()).norm() / truth.double().norm().clamp(min=1e-300)).item()
