"""SECURITY.md: nothing that exists is overwritten unasked, by any verb."""

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from crispseg.cli.main import main, whole_parser
from tests.pretrain import toys
from tests.train import tiny

pytest.importorskip("rasterio")

MODEL = Path(__file__).parents[1] / "ages" / "v0.1.0" / "model"
SCENE = ["scene.tif", "-o", "map.tif", "-m", "model", "--device", "cpu"]
VECTOR = ["vector", "--image", "scene.tif", "--labels", "drawn.gpkg", "--field", "kind"]
OUTPUTS = {  # the words of a command, and a file of somebody's that it would write
    "map.tif": ["predict", *SCENE],
    "map_confidence.tif": ["predict", *SCENE, "--confidence"],
    "map_boundaries.tif": ["predict", *SCENE, "--boundaries"],
    "map_probabilities.tif": ["predict", *SCENE, "--probabilities"],
    "map.gpkg": ["predict", *SCENE, "--polygons", "gpkg"],
    "named.gpkg": ["predict", *SCENE, "--polygons", "named.gpkg"],
    "regions.geojson": ["vectorize", "classes.tif", "-o", "regions.geojson"],
    "windows.gpkg": ["suggest", "classes.tif", "-o", "windows.gpkg"],
    "classes_windows.gpkg": ["suggest", "classes.tif"],
    "m.onnx": ["export", "model", "-o", "m.onnx"],
    "m.pt2": ["export", "model", "-o", "m.pt2"],
    "page.html": ["view", "classes.tif", "--save", "page.html"],
    "sheet.png": ["info", "squares", "--sheet", "sheet.png"],
    "timed/bench.json": ["bench", "crisp_nano", "--out", "timed"],
    "demo/map.tif": ["demo", "--out", "demo"],
    "ready/split.csv": ["prepare", "loveda", "--source", "loveda", "--out", "ready"],
    "cut/images/mine.tif": ["prepare", *VECTOR, "--out", "cut"],
    "run/metrics.jsonl": ["train", "squares", "out=run"],
    "run/best/config.json": ["train", "squares", "out=run"],
    "begun/environment.json": ["pretrain", "data=stripes", "out=begun"],
    "report/notes.txt": ["eval", "model", "squares", "--out", "report"],
    "figures/notes.txt": ["analyze", "model", "squares", "--out", "figures"],
    "rival/config.json": ["convert", "banet_restlite", "banet.ckpt", "-o", "rival", "--protocol", "potsdam/geoseg6"],
    "tables/mine.md": ["ablate", "mine.yaml", "--data", "data.yaml", "--out", "tables"],
}
# never written over: a new folder, or one of theirs
NEW_FOLDERS = {"train", "pretrain", "eval", "analyze", "ablate", "convert"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    import shapely

    from tests.fakedata import fake_loveda
    from tests.geo.labels.test_vector import draw
    from tests.geo.rasters import UTM, write_raster

    monkeypatch.chdir(tmp_path)
    shutil.copytree(MODEL, tmp_path / "model")
    tiny.make_folder(tmp_path / "squares")
    toys.class_folders(tmp_path / "stripes")
    fake_loveda(tmp_path / "loveda")
    pixels = np.random.default_rng(0).integers(0, 3, (64, 64)).astype(np.uint8)
    write_raster(tmp_path / "scene.tif", np.stack([pixels] * 3), **UTM)
    for name in ("classes.tif", "classes_confidence.tif"):
        write_raster(tmp_path / name, pixels, nodata=255, **UTM)
    draw("drawn.gpkg", [shapely.box(1, 1, 30, 30)], ["roof"], field="kind")
    (tmp_path / "mine.yaml").write_text(json.dumps({"title": "Mine", "rows": [{"name": "one"}]}))
    settings = tiny.settings(tmp_path / "squares", tmp_path / "none")
    (tmp_path / "data.yaml").write_text(json.dumps({key: value for key, value in settings.items() if key != "out"}))
    return tmp_path


@pytest.mark.parametrize("name", OUTPUTS)
def test_what_is_there_stays(name, folder, capsys):
    theirs = folder / name
    theirs.parent.mkdir(parents=True, exist_ok=True)
    theirs.write_text("not yours")
    before = sorted(folder.rglob("*"))
    assert main(OUTPUTS[name]) == 1
    assert Path(name).parts[0] in capsys.readouterr().err, "it says what is in the way"
    assert theirs.read_text() == "not yours" and sorted(folder.rglob("*")) == before


def test_every_verb_that_writes_says_what_it_does_about_it():
    """Whoever adds a verb with an output adds it to the list above."""
    verbs = next(a for a in whole_parser()._actions if isinstance(a, argparse._SubParsersAction)).choices
    outputs = {"--out", "--output", "--output-file", "--save", "--sheet"}
    writing = {v for v, p in verbs.items() if outputs & set(p._option_string_actions)} | {"train", "pretrain"}
    assert writing == {words[0] for words in OUTPUTS.values()}
    asking = {verb for verb, parser in verbs.items() if "--existing" in parser._option_string_actions}
    assert writing - asking == NEW_FOLDERS
