"""SECURITY.md: the commands reach no network, start no program and touch no file but what they were told.

Python's audit events tell; GDAL, which has its own ways, is looked after by tests/geo/test_drivers.py.
"""

import contextlib
import importlib
import os
import platform
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from campaigns.fuzz.fence import Escape, fenced

from crispseg.cli.main import main
from tests.fakedata import fake_loveda
from tests.pretrain import toys
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
    for name in ("classes.tif", "classes_confidence.tif"):
        write_raster(tmp_path / name, pixels[0] // 100, nodata=255, **UTM)
    fake_loveda(tmp_path / "loveda")
    toys.class_folders(tmp_path / "stripes")
    return tmp_path


PRETRAIN = ["model=vssd_nano", "model.options={width: 8, depths: [1, 1, 1, 1], heads: [1, 1, 2, 2], state: 4}"]
PRETRAIN += ["schedule.steps=1", "sizes=[32]", "batch_size=4", "device=cpu", "workers=0"]
OPTIONS = "{" + ", ".join(f"{name}: {value}" for name, value in tiny.OPTIONS.items()) + "}"
TRAIN = ["train", "data=squares", "model=crisp_nano", f"model.options={OPTIONS}", "schedule.steps=2", "crop=32"]


@pytest.mark.parametrize(
    "words",
    [
        ["info", "model"],
        ["info", "squares"],
        ["models", "--quick"],
        ["predict", "scene.tif", "-o", "map.tif", "--model", "model", "--polygons", "gpkg", "--device", "cpu"],
        ["predict", "scene.tif", "-o", "map.tif", "--model", "model", "--exact", "--device", "cpu"],
        [*TRAIN, "out=run", "device=cpu", "batch_size=2", "samples=1"],
        ["eval", "model", "squares", "--out", "report"],
        ["analyze", "model", "squares", "--out", "figures", "--images", "1", "--pictures", "1"],
        ["vectorize", "classes.tif", "-o", "regions.gpkg"],
        ["suggest", "classes.tif", "--side", "16"],
        ["view", "classes.tif", "scene.tif", "--save", "page.html"],
        ["export", "model", "-o", "m.pt2", "--size", "64", "64", "--batch", "1"],
        ["prepare", "loveda", "--source", "loveda", "--out", "ready"],
        ["prepare", "vector", "--image", "scene.tif", "--labels", "regions.gpkg", "--field", "class", "--out", "cut"],
        ["pretrain", "data=stripes", "out=begun", *PRETRAIN],
        ["configs"],
        ["completion", "bash"],
    ],
    ids=lambda words: "-".join(words[:2]),
)
def test_commands_stay_within_what_they_were_told(words, folder):
    """All but those that start programs of their own (ablate, bench), serve (view) or fetch by their nature (push)."""
    importlib.import_module(f"crispseg.cli.{words[0]}")
    if words[:2] == ["prepare", "vector"]:
        assert main(["vectorize", "classes.tif", "-o", "regions.gpkg"]) == 0
    import_what_is_compiled()
    platform.platform()  # Python asks `uname` for the processor, once
    with fenced(folder):
        assert main(words) == 0


def import_what_is_compiled():
    """Libraries may look around when they are imported; that is not the command's doing."""
    for name in ("matplotlib.pyplot", "matplotlib.font_manager", "torch.export", "torch._dynamo", "torch._inductor"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def test_the_fence_holds(tmp_path):
    with pytest.raises(Escape), fenced(tmp_path):
        open("/etc/passwd").close()
    with pytest.raises(Escape), fenced(tmp_path):
        os.mkdir(tmp_path.parent / "beside")
