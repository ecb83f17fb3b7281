import pytest

pytest.importorskip("fastapi")
pytest.importorskip("rio_tiler")
