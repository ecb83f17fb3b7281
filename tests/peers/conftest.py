import importlib.util
from pathlib import Path

import pytest

WITHOUT_TIMM = {"test_attention.py", "test_blocks.py", "test_mamba.py", "test_rest.py", "test_registry.py"}
timm_is_missing = importlib.util.find_spec("timm") is None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        here = item.path.parent == Path(__file__).parent
        if here and timm_is_missing and item.path.name not in WITHOUT_TIMM:
            item.add_marker(pytest.mark.skip(reason="needs timm: pip install 'crispseg[peers]'"))
