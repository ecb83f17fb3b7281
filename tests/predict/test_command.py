"""`crisp predict` as it is typed."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import crispseg
from crispseg.cli import main as cli
from crispseg.cli.predict import duration
from crispseg.models.base import ModelInfo
from tests.geo.rasters import UTM, random_pixels, read_raster, write_raster


@pytest.fixture
def crisp(monkeypatch, capsys):
    monkeypatch.setitem(cli.VERBS, "predict", "")

    def run(*words):
        status = cli.main(["predict", *map(str, words)])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def model(tmp_path):
    model = crispseg.create_model("crisp_nano", num_classes=3)
    model.info = ModelInfo(classes=("roof", "road", "tree"), mean=(15.0,) * 3, std=(8.0,) * 3)
    model.save(tmp_path / "model")
    return model


@pytest.fixture
def scene(tmp_path):
    return write_raster(tmp_path / "scene.tif", random_pixels(3, 100, 130), **UTM)


def test_a_map_and_its_summary(crisp, model, scene, tmp_path):
    words = ["--tile", 64, "--confidence", "--polygons", "fgb", "--min-area", 1, "--simplify", 0.5, "--tta", "flip"]
    status, out, err = crisp(scene, "-o", tmp_path / "map.tif", "-m", tmp_path / "model", *words)
    assert status == 0, err
    lines = out.splitlines()
    assert lines[0].startswith(f"{scene} -> ")
    assert [line.split()[1] for line in lines[1:]] == ["roof", "road", "tree"]
    total = sum(float(line.split()[2].replace(",", "")) for line in lines[1:])
    assert total == pytest.approx(100 * 130 * 0.25, abs=2) and lines[1].split()[3] == "m2"
    assert {path.name for path in tmp_path.iterdir()} == {
        "model",
        "scene.tif",
        "map.tif",
        "map.tif.aux.xml",
        "map.qml",
        "map.fgb",
        "map_confidence.tif",
    }
    expected = crispseg.predict.segment(scene, tmp_path / "model", tile=64, tta="flip")
    np.testing.assert_array_equal(read_raster(tmp_path / "map.tif")[0], expected)


def test_failures_are_listed_and_the_rest_is_done(crisp, model, scene, tmp_path):
    four = write_raster(tmp_path / "four.tif", random_pixels(5, 20, 20), photometric="minisblack", **UTM)
    plain = write_raster(tmp_path / "plain.tif", random_pixels(3, 20, 20))
    words = ["-o", tmp_path / "maps", "-m", tmp_path / "model", "--tile", 64]
    status, out, err = crisp(four, scene, plain, *words, "--require-crs")
    assert status == 1
    assert {path.name for path in (tmp_path / "maps").iterdir()} == {"scene.tif", "scene.tif.aux.xml", "scene.qml"}
    assert "2 scenes failed" in err
    assert f"{four}: model 'model' takes 3 bands" in err, "the folder, not the kind of network"
    assert f"{plain}: {plain} has no coordinate reference system" in err
    status, out, err = crisp(plain, *words)
    assert status == 0 and "the map will have none" in err and " px " in out


def test_a_dry_run_writes_nothing(crisp, model, scene, tmp_path):
    before = sorted(tmp_path.iterdir())
    words = ["-o", tmp_path / "map.tif", "-m", tmp_path / "model", "--tile", 64, "--overlap", 16, "--dry-run"]
    status, out, _ = crisp(scene, *words)
    assert status == 0
    assert "130 x 100 px, 6 tiles of 64 x 64 px" in out and "MiB for blending" in out
    assert out.endswith((" s\n", "a second\n"))
    assert "pixels of 0.5 m as they are" in out
    status, _, err = crisp(tmp_path / "none.tif", scene, *words[2:], "-o", tmp_path / "maps")
    assert status == 1 and "there is no file" in err
    assert sorted(tmp_path.iterdir()) == before


def test_a_dry_run_tells_the_same_memory_of_the_same_scene(crisp, tmp_path):
    """Of all scenes but the first it told what the allocator had not kept of the one before."""
    scene = write_raster(tmp_path / "scene.tif", random_pixels(3, 512, 512), **UTM)
    again = shutil.copy(scene, tmp_path / "again.tif")
    words = ["-o", tmp_path / "maps", "-m", "crisp_nano_aerial", "--tile", 512, "--precision", "float32"]
    status, out, _ = crisp(scene, again, *words, "--dry-run", "--json")
    first, second = (plan["evaluation"] for plan in json.loads(out)["plans"])
    assert status == 0 and (first == 0 or second > first / 4)


@pytest.mark.parametrize("how", [["--tile", 64], ["--exact"]])
def test_a_dry_run_says_that_it_will_resample(crisp, model, scene, tmp_path, how):
    model.info = dataclasses.replace(model.info, resolutions=(1.0, 2.0))
    model.save(tmp_path / "model")
    words = [scene, "-o", tmp_path / "map.tif", "-m", tmp_path / "model", "--dry-run", *how]
    status, out, err = crisp(*words)
    assert status == 0 and "pixels of 0.5 m resampled to 1 m" in out and "65 x 50 px" in out
    assert "tiles" not in out or "2 tiles of 64 x 64 px" in out
    assert "it is resampled to 1 m (--resolution scene leaves it as it is)" in err
    (plan,) = json.loads(crisp(*words, "--json")[1])["plans"]
    assert plan["read"] in out and plan["warnings"][0] in err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--min-area", "3"], "--polygons"),
        (["--polygons", "out.shp"], ".gpkg"),
        (["--resolution", "fine"], "number of metres"),
        (["--batch-size", "0"], "batch size"),
        (["--workers", "0"], "worker"),
        (["--overlap", "2000"], "overlap"),
        (["--device", "warp9"], "device 'warp9'"),
    ],
)
def test_mistakes_are_one_sentence(crisp, model, scene, tmp_path, words, reason):
    status, _, err = crisp(scene, "-o", tmp_path / "map.tif", "-m", tmp_path / "model", *words)
    assert status == 1 and reason in err
    assert "Traceback" not in err and not (tmp_path / "map.tif").exists()
    assert not list(tmp_path.glob(".map*"))


def test_a_wrong_model_is_explained(crisp, scene, tmp_path):
    status, _, err = crisp(scene, "-o", tmp_path / "map.tif", "-m", tmp_path / "nothing")
    assert status == 1 and str(tmp_path / "nothing") in err
    crispseg.create_model("crisp_nano", num_classes=3).save(tmp_path / "bare")
    status, _, err = crisp(scene, "-o", tmp_path / "map.tif", "-m", tmp_path / "bare")
    assert status == 1 and "card has 0 means" in err


def test_as_one_image_no_tiles_are_announced(crisp, model, scene, tmp_path):
    status, _, err = crisp(scene, "-o", tmp_path / "map.tif", "-m", tmp_path / "model", "--exact")
    assert status == 0 and "scene.tif: as one image" in err and "1 tile" not in err


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "less than a second"), (5, "5 s"), (95, "1 min 35 s"), (3600, "1 h"), (7384, "2 h 3 min")],
)
def test_durations_are_told_in_words(seconds, words):
    assert duration(seconds) == words


def test_an_interruption_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def interrupt(*words, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("crispseg.predict.batch.predict_scenes", interrupt)
    scene = write_raster(tmp_path / "a.tif", random_pixels(3, 40, 40), **UTM)
    assert cli.main(["predict", scene, "-o", str(tmp_path / "map.tif")]) == 130
    assert "the same command goes on where it stopped" in capsys.readouterr().err


def test_tiles_of_ten_pixels_are_refused(tmp_path, capsys):
    assert cli.main(["predict", "a.tif", "-o", str(tmp_path / "map.tif"), "--tile", "10"]) == 1
    assert "tiles of 10 px are too small" in capsys.readouterr().err
