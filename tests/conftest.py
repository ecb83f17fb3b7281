import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

# One thread per test process: the suite runs in parallel, and two threads on shared cores only wait for each other.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
hypothesis.settings.register_profile("suite", deadline=None, max_examples=30)
hypothesis.settings.load_profile("suite")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """CRISPSEG_TEST_CLAIMS=FOLDER: processes with the same folder share the tests, where there is no pytest-xdist."""
    folder = os.environ.get("CRISPSEG_TEST_CLAIMS")
    if not folder or session.config.option.collectonly:
        return None
    ours = _claimed(session.items, Path(folder))
    item = next(ours, None)
    while item is not None:
        following = next(ours, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        item = following
    return True


def _claimed(items: list[pytest.Item], folder: Path) -> Iterator[pytest.Item]:
    """A few neighbours at a time, as they need the same kernels: whoever makes the file first has them."""
    for start in range(0, len(items), 4):
        with contextlib.suppress(FileExistsError):
            (folder / str(start)).touch(exist_ok=False)
            yield from items[start : start + 4]


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
