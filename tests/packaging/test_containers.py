"""Dockerfiles: linted, and their install lines run as far as that is possible without a registry of images."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_lint(path):
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if linter is None:
        pytest.skip("hadolint is not installed")
    found = subprocess.run([linter, str(path)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_what_is_copied_is_there_and_let_in():
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert all((ROOT / name).exists() for name in allowed)
    for path in FILES:
        copied = re.findall(r"^COPY (?!--from)(\S+)", path.read_text(), flags=re.MULTILINE)
        assert set(copied) - {"."} <= allowed


@pytest.mark.slow
def test_the_install_lines_can_be_resolved(distributions, tmp_path):
    """Of the CPU image, by an empty environment's pip: with this machine's index in place of torch's own."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    for file in [*distributions.glob("*.whl"), ROOT / "constraints.txt"]:
        shutil.copy(file, tmp_path)
    text = (ROOT / "docker" / "cpu.Dockerfile").read_text().partition("FROM python:3.13-slim\n")[2]
    (line,) = re.findall(r"^RUN (pip install .*?[^\\])$", text, flags=re.MULTILINE | re.DOTALL)
    line = line.replace('${TORCH_INDEX:+--index-url "${TORCH_INDEX}"}', "")
    line = line.replace("pip install", "pip install --dry-run -q")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {
        "PATH": f"{tmp_path}/env/bin:{os.environ['PATH']}"
    }
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
