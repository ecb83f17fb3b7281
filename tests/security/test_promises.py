"""SECURITY.md: the commands reach no network, start no program and touch no file but what they were told.

Python's audit events tell; GDAL, which has its own ways, is looked after by tests/geo/test_drivers.py.
"""

import os
import platform
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from campaigns.fuzz.fence import Escape, fenced

from crispseg.cli.main import main
from tests.train import tiny

pytest.importorskip("rasterio")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run, its data and a scene; the current folder, so that defaults land in it."""
    from tests.geo.rasters import UTM, write_raster

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))  # torch makes one when it is imported
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    shutil.copytree(Path(__file__).parents[1] / "ages" / "v0.1.0" / "model", tmp_path / "model")
    tiny.make_folder(tmp_path / "squares")
    pixels = np.random.default_rng(0).integers(0, 255, (3, 64, 64)).astype(np.uint8)
    write_raster(tmp_path / "scene.tif", pixels, **UTM)
    return tmp_path


OPTIONS = "{" + ", ".join(f"{name}: {value}" for name, value in tiny.OPTIONS.items()) + "}"
TRAIN = ["train", "data=squares", "model=crisp_nano", f"model.options={OPTIONS}", "schedule.steps=2", "crop=32"]


@pytest.mark.parametrize(
    "words",
    [
        ["info", "model"],
        ["info", "squares"],
        ["models", "--quick"],
        ["predict", "scene.tif", "-o", "map.tif", "--model", "model", "--polygons", "gpkg", "--device", "cpu"],
        [*TRAIN, "out=run", "device=cpu", "batch_size=2", "samples=1"],
        ["eval", "model", "squares", "--out", "report"],
    ],
    ids=lambda words: words[0],
)
def test_commands_stay_within_what_they_were_told(words, folder):
    for name in ("info", "predict", "train", "eval", "models"):
        __import__(f"crispseg.cli.{name}")
    platform.platform()  # Python asks `uname` for the processor, once
    with fenced(folder):
        assert main(words) == 0


def test_the_fence_holds(tmp_path):
    with pytest.raises(Escape), fenced(tmp_path):
        open("/etc/passwd").close()
    with pytest.raises(Escape), fenced(tmp_path):
        os.mkdir(tmp_path.parent / "beside")
