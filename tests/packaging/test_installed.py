"""The wheel, installed into an empty environment, does its work from another folder, with configs given by name."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.train import tiny

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def crisp(distributions, tmp_path_factory):
    """Runs the installed command in a folder of its own.

    The environment holds nothing but the wheel. With CRISPSEG_WHEEL_TEST=whole its dependencies are installed too, as a
    user's pip would do; otherwise those of this environment are lent to it, which takes seconds instead of minutes.
    """
    (wheel,) = distributions.glob("*.whl")
    place = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", str(place / "env")], check=True)
    python = place / "env" / "bin" / "python"
    whole = os.environ.get("CRISPSEG_WHEEL_TEST") == "whole"
    constraints = Path(__file__).parents[2] / "constraints.txt"
    options = ["-c", str(constraints)] if whole else ["--no-deps"]
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    subprocess.run([str(python), "-m", "pip", "install", "-q", *options, str(wheel)], env=env, check=True)
    if not whole:  # packages of a path in a .pth file are found; an editable crispseg there is not
        (site,) = (place / "env" / "lib").glob("python*/site-packages")
        (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    folder = place / "elsewhere"
    folder.mkdir()

    def run(*words):
        command = [str(place / "env" / "bin" / "crisp"), *words]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"crisp {' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    run.folder = folder
    return run


SHORT = ("model=crisp_nano", "schedule.steps=2", "schedule.warmup=0", "batch_size=2", "crop=64", "workers=0")


def test_the_wheel_is_used(crisp):
    assert crisp("--version").startswith("crispseg ")
    assert "potsdam" in crisp("configs") and "base: paper" in crisp("configs", "potsdam")


def test_demo(crisp):
    crisp("demo", "--out", "demo")
    assert (crisp.folder / "demo" / "index.html").is_file()


def test_train_eval_and_ablate_by_name(crisp):
    tiny.make_folder(crisp.folder / "squares")
    own = ("data=squares", "data.protocol=null", "data.bands=null", *SHORT)
    crisp("train", "potsdam", *own, "out=run")
    assert (crisp.folder / "run" / "best" / "model.safetensors").is_file()
    assert "mIoU" in crisp("eval", "run", "squares", "--out", "report")
    said = crisp("ablate", "skip", *own[1:], "val_every=2", "--data", "ablation_dubai=squares", "--size", "nano")
    assert "| after |" in said and "| before |" in said
