"""Scenes that lie in an S3 server or behind a web server, and maps that go there."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from crispseg.errors import UserError
from crispseg.geo import landing, store
from crispseg.geo.maps import MapChoice
from crispseg.geo.polygons import PolygonChoice
from crispseg.geo.reader import open_raster
from crispseg.geo.scenes import find_scenes
from crispseg.geo.vectorize import vectorize_map
from crispseg.predict.bands import Pace
from crispseg.predict.batch import predict_scenes
from crispseg.predict.scene import Request, Watcher
from crispseg.predict.work import Settings
from tests.geo.rasters import UTM, random_pixels, read_raster, write_raster
from tests.geo.servers import keys_in, range_server
from tests.predict.standins import StandIn

SMALL = Request(Settings(32, 8), pace=Pace(2, 2))
FULL = dataclasses.replace(SMALL, maps=MapChoice(confidence=True), polygons=PolygonChoice("gpkg"))
FILES = ["map.gpkg", "map.qml", "map.tif", "map.tif.aux.xml", "map_confidence.tif"]


@pytest.fixture
def scene(tmp_path):
    return write_raster(tmp_path / "scene.tif", random_pixels(3, 90, 70), **UTM)


def run(scenes, output, tmp_path, request=SMALL, model=None, **more):
    scenes = [scenes] if isinstance(scenes, str) else scenes
    return predict_scenes(scenes, output, model or StandIn(), request, scratch=str(tmp_path / "scratch"), **more)


def test_from_a_bucket_into_a_bucket_the_bytes_are_those_of_local_files(bucket, s3, scene, tmp_path):
    store.put(Path(scene), f"{bucket}/in/scene.tif")
    assert not run(scene, str(tmp_path / "map.tif"), tmp_path, FULL).failures
    report = run(f"{bucket}/in/scene.tif", f"{bucket}/out/map.tif", tmp_path, FULL)
    assert not report.failures and sorted(report.results[0].files) == [f"{bucket}/out/{name}" for name in FILES]
    assert [key for key in keys_in(s3) if key.startswith("out/")] == [f"out/{name}" for name in FILES]
    for name in FILES:
        assert store.read_bytes(f"{bucket}/out/{name}", 1 << 30) == (tmp_path / name).read_bytes()
    assert not list((tmp_path / "scratch").iterdir()), "nothing stays on this machine"


def test_several_scenes_of_a_web_server(bucket, s3, scene, tmp_path):
    (tmp_path / "web").mkdir()
    for name in ("a", "b"):
        (tmp_path / "web" / f"{name}.tif").write_bytes(Path(scene).read_bytes())
    with range_server(tmp_path / "web", failures=1) as address:
        report = run([f"{address}/a.tif?token=x", f"{address}/b.tif"], f"{bucket}/maps", tmp_path)
    assert not report.failures
    assert {key for key in keys_in(s3) if key.startswith("maps/") and key.endswith(".tif")} == {
        "maps/a.tif", "maps/b.tif"
    }  # fmt: skip


def test_a_folder_of_a_bucket_and_what_is_not_there(bucket, s3, scene, tmp_path):
    for name in ("a.tif", "b.tif", "notes.txt", "below/c.tif"):
        store.put(Path(scene), f"{bucket}/many/{name}")
    found = find_scenes([f"{bucket}/many/"])
    assert [(s.path, s.name) for s in found] == [(f"{bucket}/many/a.tif", "a"), (f"{bucket}/many/b.tif", "b")]
    with pytest.raises(UserError, match="s3://bucket/nothing/ cannot be listed"):
        find_scenes([f"{bucket}/nothing/"])
    with pytest.raises(UserError, match="there is no s3://bucket/many/x.tif"):
        open_raster(f"{bucket}/many/x.tif")


def test_what_is_there_is_refused_skipped_or_replaced(bucket, scene, tmp_path):
    output = f"{bucket}/twice/map.tif"
    assert not run(scene, output, tmp_path).failures
    first = store.fingerprint(output)
    assert "there already; remove, or say --existing replace" in run(scene, output, tmp_path).failures[0][1]
    assert run(scene, output, tmp_path, existing="skip").skipped == (output,)
    assert store.fingerprint(output) == first
    assert run(scene, output, tmp_path, model=StandIn(step=10), existing="replace").results
    assert store.fingerprint(output) != first
    any_values = dataclasses.replace(SMALL, reading=dataclasses.replace(SMALL.reading, any_values=True))
    failures = run(output, output, tmp_path, model=StandIn(bands=1), request=any_values, existing="replace").failures
    assert "would be replaced by its own map" in failures[0][1]


class Crash(BaseException):
    """Stands for the power going off."""


def test_a_run_that_stopped_while_uploading_goes_on(bucket, s3, scene, tmp_path, monkeypatch):
    put = store.put
    for survived in (0, 2, 4):
        output, left = f"{bucket}/stopped_{survived}/map.tif", [survived]

        def failing(path, name, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise Crash
            put(path, name)

        with monkeypatch.context() as patch:
            patch.setattr(store, "put", failing)
            with pytest.raises(Crash):
                run(scene, output, tmp_path, FULL)
        assert not store.exists(output), "the class map comes last"
        model, evaluated = StandIn(), []
        model.before = lambda x, evaluated=evaluated: evaluated.append(len(x))
        assert not run(scene, output, tmp_path, FULL, model).failures
        assert not evaluated, "nothing was computed again"
    assert not list((tmp_path / "scratch").iterdir())


def test_rights_and_room_are_looked_at_before_the_first_tile(bucket, scene, tmp_path, monkeypatch):
    model = StandIn()
    model.before = lambda x: pytest.fail("a tile was evaluated")
    with pytest.raises(UserError, match="s3://nobody cannot be written"):
        run(scene, "s3://nobody/map.tif", tmp_path, model=model)
    with pytest.raises(UserError, match="can be read but not written"):
        run(scene, "https://host/map.tif", tmp_path, model=model)
    with pytest.raises(UserError, match="names no bucket"):
        run(scene, "s3://map.tif", tmp_path, model=model)
    with pytest.raises(UserError, match="not in the folder of the maps"):
        elsewhere = dataclasses.replace(SMALL, polygons=PolygonChoice("s3://bucket/other/x.gpkg"))
        run(scene, f"{bucket}/maps/map.tif", tmp_path, elsewhere, model=model)
    monkeypatch.setattr(landing.shutil, "disk_usage", lambda path: type("usage", (), {"free": 100}))
    report = run(scene, f"{bucket}/room/map.tif", tmp_path, model=model)
    assert "MiB free, and this scene needs about" in report.failures[0][1]


def test_a_network_that_breaks_loses_nothing(bucket, tmp_path):
    (tmp_path / "web").mkdir()
    pixels = random_pixels(3, 200, 600)
    write_raster(tmp_path / "web" / "a.tif", pixels, tiled=True, blockxsize=64, blockysize=64, **UTM)

    class Breaks(Watcher):
        def __init__(self):
            self.done = 0

        def tile_done(self):
            self.done += 1
            if self.done == 70:
                (tmp_path / "web" / "a.tif").rename(tmp_path / "web" / "gone")

    output = str(tmp_path / "map.tif")
    with range_server(tmp_path / "web") as address:
        scene = f"{address}/a.tif"
        first = run(scene, output, tmp_path, watcher=Breaks())
        if not first.failures:
            pytest.skip("GDAL had all of the file in its cache")
        (tmp_path / "web" / "gone").rename(tmp_path / "web" / "a.tif")
        model, evaluated = StandIn(), []
        model.before = lambda x, evaluated=evaluated: evaluated.append(len(x))
        assert not run(scene, output, tmp_path, model=model).failures
    assert sum(evaluated) < 9 * 26, "finished bands were kept"
    grey = pixels.astype(int).sum(axis=0)
    expected = np.abs(grey[None] - 20 * np.arange(5)[:, None, None]).argmin(axis=0)
    np.testing.assert_array_equal(read_raster(output)[0], expected)


def test_polygons_of_a_remote_map_go_to_a_bucket(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("CRISP_SCRATCH", str(tmp_path / "scratch"))
    classes = random_pixels(1, 30, 40, high=4)
    store.put(Path(write_raster(tmp_path / "map.tif", classes, nodata=255, **UTM)), f"{bucket}/v/map.tif")
    count = vectorize_map(f"{bucket}/v/map.tif", f"{bucket}/v/map.geojson")
    assert count == vectorize_map(str(tmp_path / "map.tif"), str(tmp_path / "map.geojson"))
    assert store.read_bytes(f"{bucket}/v/map.geojson", 1 << 30) == (tmp_path / "map.geojson").read_bytes()
    with pytest.raises(UserError, match="s3://bucket/v/map.geojson is there already"):
        vectorize_map(f"{bucket}/v/map.tif", f"{bucket}/v/map.geojson")
    assert not [path for path in (tmp_path / "scratch").rglob("*") if path.is_file()]


def test_a_remote_vrt_is_not_trusted(tmp_path):
    with pytest.raises(UserError, match="is a VRT, which can read other files"):
        open_raster("https://127.0.0.1:1/evil.vrt?x=1")


@pytest.mark.slow
def test_killed_at_random_moments_it_uploads_the_same_bytes():
    pytest.importorskip("moto")
    script = Path(__file__).with_name("killed_uploads.py")
    done = subprocess.run(
        [sys.executable, str(script), "2"], capture_output=True, text=True, cwd=script.parents[2], timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same bytes" in done.stdout
