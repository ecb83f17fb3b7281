import pytest

from tests.train import tiny


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tiny.make_folder(tmp_path_factory.mktemp("data") / "squares")
