"""The wheel and the sdist of this checkout, built once for all tests here."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both. They are built from what git would commit, so that no leftover of a build gets in."""
    pytest.importorskip("build")
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    listed = subprocess.check_output(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
    for name in listed.decode().splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    # without arguments: the wheel is built from the sdist, so the sdist is known to be complete
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout[-3000:] + made.stderr[-3000:]
    return out
