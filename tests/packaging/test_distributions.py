"""What is in the wheel and in the sdist, and what the package index will show of them."""

import email
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import crispseg
from crispseg.configs import names

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(distributions):
    (path,) = distributions.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture(scope="module")
def sdist_names(distributions):
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def test_the_wheel_has_all_that_the_package_reads(wheel):
    inside = set(wheel.namelist())
    for path in [*names("config").values(), *names("table").values()]:
        assert path.relative_to(ROOT / "src").as_posix() in inside
    tracked = subprocess.check_output(["git", "ls-files", "src"], cwd=ROOT, text=True).split()
    missing = [name for name in tracked if name.removeprefix("src/") not in inside and (ROOT / name).exists()]
    assert not missing, f"add them to package-data in pyproject.toml: {missing}"
    assert not [name for name in inside if name.startswith(("tests/", "docs/"))]


def test_the_wheel_stays_small(distributions):
    (path,) = distributions.glob("*.whl")
    assert path.stat().st_size < 45e6, "store weights in fewer bits: tools/store_backbone.py"


def test_the_sdist_has_tests_docs_and_changelog(sdist_names):
    wanted = ("CHANGELOG.md", "LICENSE", "Makefile", "constraints.txt", "tests/conftest.py", "docs/images/demo.jpg")
    assert not [name for name in wanted if name not in sdist_names]
    assert not [name for name in sdist_names if "__pycache__" in name]


def test_metadata(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))
    assert metadata["Version"] == crispseg.__version__
    assert {line.partition(",")[0] for line in metadata.get_all("Project-URL")} >= {"Documentation", "Issues", "Source"}
    assert metadata["Author"] == "crispseg maintainers" and metadata["License-Expression"] == "Apache-2.0"


def test_the_readme_renders_on_the_index(distributions):
    pytest.importorskip("twine")
    files = [str(path) for path in distributions.iterdir()]
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *files], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
