import os
from collections.abc import Iterator

import hypothesis
import pytest
import torch

# One thread per test process: the suite runs in parallel, and two threads on shared cores only wait for each other.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
hypothesis.settings.register_profile("suite", deadline=None, max_examples=30)
hypothesis.settings.load_profile("suite")


def pytest_configure() -> None:
    """Beside a GPU each of xdist's processes keeps to one core: else every one would compile kernels on all of them."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and torch.cuda.is_available() and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Why a test failed is told at once, where a run may be cut off before its summary (`on_gpu.sh tests`)."""
    path = os.environ.get("CRISPSEG_TEST_FAILURES")
    if path and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n{report.longreprtext}\n\n")


@pytest.fixture(autouse=True)
def _same_start() -> None:
    """Whatever ran before: training switches TF32 on for the whole process. Float32 is float32 here, in cuDNN too."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """An object store of this machine: the environment that leads to it."""
    pytest.importorskip("moto")
    from tests.geo.servers import s3_server

    with s3_server() as environment:
        yield environment


@pytest.fixture
def bucket(s3: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    for key, value in s3.items():
        monkeypatch.setenv(key, value)
    return "s3://bucket"


def relative_error(x: torch.Tensor, truth: torch.Tensor) -> float:
    return ((x.double() - truth.double()).norm() / truth.double().norm().clamp(min=1e-300)).item()
