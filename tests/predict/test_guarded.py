"""Attacks on `crisp predict`: no input and nothing that exists is lost, stale work is never taken for fresh."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import rasterio

from crispseg.errors import UserError
from crispseg.geo.maps import MapChoice
from crispseg.geo.polygons import PolygonChoice
from crispseg.outputs import Workplace, work_folder
from crispseg.predict.bands import Pace
from crispseg.predict.batch import predict_scenes
from crispseg.predict.scene import Request, Watcher
from crispseg.predict.work import Settings
from tests.geo.rasters import UTM, random_pixels, read_raster, write_raster
from tests.predict.standins import StandIn

SMALL = Request(Settings(32, 8), pace=Pace(2, 2))
FULL = dataclasses.replace(SMALL, maps=MapChoice(True, True, True), polygons=PolygonChoice("gpkg"))
VRT = """<VRTDataset rasterXSize="60" rasterYSize="90">{}</VRTDataset>"""
BAND = """<VRTRasterBand dataType="Byte" band="{0}"><SimpleSource><SourceFilename relativeToVRT="1">{1}</SourceFilename>
<SourceBand>{0}</SourceBand></SimpleSource></VRTRasterBand>"""


@pytest.fixture
def scene(tmp_path):
    return write_raster(tmp_path / "scene.tif", random_pixels(3, 90, 60), **UTM)


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


def predict(scenes, target, request=SMALL, model=None, **options):
    scenes = [scenes] if isinstance(scenes, str) else scenes
    return predict_scenes(scenes, str(target), model or StandIn(), request, **options)


class Crash(BaseException):
    """Stands for the power going off."""


class Watching(Watcher):
    """Crashes after so many tiles; hears what is said."""

    def __init__(self, tiles=10**9):
        self.left, self.heard = tiles, []

    def tile_done(self):
        self.left -= 1
        if self.left < 0:
            raise Crash

    def say(self, what):
        self.heard.append(what)


def test_polygons_do_not_replace_the_scene_they_are_made_of(tmp_path):
    package = tmp_path / "ortho.gpkg"
    write_raster(package, random_pixels(3, 90, 60), driver="GPKG", **UTM)
    before = package.read_bytes()
    for existing in ("refuse", "skip", "replace"):
        request = dataclasses.replace(SMALL, polygons=PolygonChoice("gpkg"))
        with pytest.raises(UserError, match="ortho.gpkg would replace .*ortho.gpkg, which is read"):
            predict(str(package), tmp_path / "ortho.tif", request, existing=existing)
    assert package.read_bytes() == before


@pytest.mark.parametrize("what", ["confidence", "boundaries", "probabilities", "classes"])
def test_no_map_replaces_a_file_of_any_scene(tmp_path, scene, what):
    """Not even a file that another scene of the same command is read from, through a VRT."""
    inner = tmp_path / ("b.tif" if what == "classes" else f"b_{what}.tif")
    shutil.copy(scene, inner)
    (tmp_path / "a.vrt").write_text(VRT.format("".join(BAND.format(k, inner.name) for k in (1, 2, 3))))
    (tmp_path / "other").mkdir()
    shutil.copy(scene, tmp_path / "other" / "b.tif")
    before = inner.read_bytes()
    scenes = [str(tmp_path / "a.vrt"), str(tmp_path / "other" / "b.tif")]
    request = dataclasses.replace(SMALL, maps=MapChoice(True, True, True))
    with pytest.raises(UserError, match="which is read"):
        predict(scenes, tmp_path, request, existing="replace")
    assert inner.read_bytes() == before


@pytest.mark.parametrize("ending", [".gpkg", "_confidence.tif", "_boundaries.tif", "_probabilities.tif", ".tif"])
def test_every_output_that_exists_is_kept_unless_asked(tmp_path, scene, ending):
    precious = tmp_path / f"map{ending}"
    precious.write_text("precious")
    report = predict(scene, tmp_path / "map.tif", FULL)
    assert f"{precious} is there already" in report.failures[0][1]
    assert "but not" in predict(scene, tmp_path / "map.tif", FULL, existing="skip").failures[0][1]
    assert contents(tmp_path) == {"scene.tif": Path(scene).read_bytes(), precious.name: b"precious"}
    assert predict(scene, tmp_path / "map.tif", FULL, existing="replace").results
    assert precious.read_bytes() != b"precious"
    assert predict(scene, tmp_path / "map.tif", FULL, existing="skip").skipped


def test_a_link_in_the_journals_place_is_refused(tmp_path, scene):
    precious = tmp_path / "precious"
    precious.mkdir()
    for name in ("lock", "job.json", "letter.txt"):
        (precious / name).write_text("keep")
    before = contents(precious)
    for name in (".map.tif.crisp", ".map.gpkg.crisp", ".map_confidence.tif.crisp"):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / name).symlink_to(precious)
        assert "not a folder of crisp" in predict(scene, tmp_path / "out" / "map.tif", FULL).failures[0][1]
        assert contents(precious) == before
        shutil.rmtree(tmp_path / "out")


def test_moves_go_nowhere_but_to_the_outputs(tmp_path, scene):
    """A journal from elsewhere cannot name files to rename, or places to put them."""
    (tmp_path / "letter").write_text("keep")
    with pytest.raises(Crash):
        predict(scene, tmp_path / "map.tif", watcher=Watching(3))
    journal = tmp_path / ".map.tif.crisp"
    for text in (
        f'{{"made": {{"classes": "../letter"}}, "result": {{}}, "moves": [["{tmp_path}/letter", "{tmp_path}/x"]]}}',
        '{"made": {}, "result": {}}',
        '{"made": {"classes": "making-map.tif"}, "result": {"scene": 3}}',
        "[]",
        "{",
    ):
        (journal / "moves.json").write_text(text)
        predict(scene, tmp_path / "map.tif")
        assert (tmp_path / "letter").read_text() == "keep" and not (tmp_path / "x").exists()
        journal.mkdir(exist_ok=True)
    shutil.rmtree(journal, ignore_errors=True)


def test_two_runs_with_one_polygon_file(tmp_path, scene):
    """The second is refused while the first is at work, whatever its map is called."""
    other = dataclasses.replace(SMALL, polygons=PolygonChoice(str(tmp_path / "all.gpkg")))

    class RunsAgain(Watcher):
        reasons = ()

        def tile_done(self):
            self.reasons = [*self.reasons, predict(scene, tmp_path / "two.tif", other).failures[0][1]]

    again = RunsAgain()
    assert not predict(scene, tmp_path / "one.tif", other, watcher=again).failures
    assert again.reasons and all("another run is making" in reason for reason in again.reasons)
    assert sorted(os.listdir(tmp_path)) == ["all.gpkg", "one.qml", "one.tif", "one.tif.aux.xml", "scene.tif"]


@pytest.mark.parametrize("change", ["card", "nested", "content"])
def test_stale_work_is_not_taken_for_fresh(tmp_path, scene, change):
    (tmp_path / "inner.vrt").write_text(VRT.format("".join(BAND.format(k, "scene.tif") for k in (1, 2, 3))))
    (tmp_path / "outer.vrt").write_text(VRT.format("".join(BAND.format(k, "inner.vrt") for k in (1, 2, 3))))
    path, target, model = str(tmp_path / "outer.vrt"), tmp_path / "map.tif", StandIn()
    with pytest.raises(Crash):
        predict(path, target, watcher=Watching(8))
    assert list((tmp_path / ".map.tif.crisp").glob("band-*"))
    if change == "card":
        model = model.with_card(mean=(5.0,) * 3)
        said = "model.mean"
    else:
        about, pixels = os.stat(scene), random_pixels(3, 90, 60, seed=1)
        write_raster(scene, pixels, **UTM)
        assert os.stat(scene).st_size == about.st_size
        if change == "content":
            os.utime(scene, ns=(about.st_atime_ns, about.st_mtime_ns))
        said = f"files.{scene}"
    watcher = Watching()
    assert not predict(path, target, model=model, watcher=watcher).failures
    assert any(f"({said} differs)" in what for what in watcher.heard)
    predict(path, tmp_path / "fresh.tif", model=model)
    np.testing.assert_array_equal(read_raster(target), read_raster(tmp_path / "fresh.tif"))


@pytest.mark.parametrize("damage", ["cut", "turned", "longer", "other size"])
def test_a_damaged_band_is_made_again(tmp_path, scene, damage):
    predict(scene, tmp_path / "whole.tif")
    with pytest.raises(Crash):
        predict(scene, tmp_path / "map.tif", watcher=Watching(8))
    band = sorted((tmp_path / ".map.tif.crisp").glob("band-*"))[0]
    data = band.read_bytes()
    middle = len(data) // 2
    band.write_bytes(
        {
            "cut": data[:middle],
            "turned": data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :],
            "longer": data + b"more",
            "other size": zlib.compress(b"too short"),
        }[damage]
    )
    assert not predict(scene, tmp_path / "map.tif").failures
    assert (tmp_path / "map.tif").read_bytes() == (tmp_path / "whole.tif").read_bytes()


def test_a_scenes_failure_is_its_own(tmp_path, scene):
    latin = tmp_path / "latin.tif"
    write_raster(latin, random_pixels(3, 40, 40), descriptions=["abcdXYZ", "", ""], **UTM)
    latin.write_bytes(latin.read_bytes().replace(b"abcdXYZ", b"abcd\xe4\xf6\xfc"))

    class Touchy(StandIn):
        def forward(self, x):
            if x.max() > 100:
                raise ZeroDivisionError("of a kind nobody foresaw")
            return super().forward(x)

    bright = write_raster(tmp_path / "bright.tif", np.full((3, 40, 40), 200, np.uint8), **UTM)
    report = predict([str(latin), bright, scene], tmp_path / "maps", model=Touchy())
    assert [Path(result.scene).name for result in report.results] == ["latin.tif", "scene.tif"]
    assert report.failures == ((bright, "unexpected ZeroDivisionError: of a kind nobody foresaw"),)


@pytest.mark.parametrize("sentinel", [-3.4028235e38, 3.4e38, 1e300, -1e300, 9.96921e36, 1e20])
def test_finite_sentinels_are_no_data(tmp_path, sentinel):
    """They change nothing beside them, with and without a tag."""
    pixels = random_pixels(3, 40, 40).astype(np.float64)
    pixels[:, :20] = np.nan
    predict(write_raster(tmp_path / "nan.tif", pixels, **UTM), tmp_path / "one.tif", model=StandIn(reach=4))
    pixels[:, :20] = sentinel
    predict(write_raster(tmp_path / "finite.tif", pixels, **UTM), tmp_path / "two.tif", model=StandIn(reach=4))
    one, two = read_raster(tmp_path / "one.tif"), read_raster(tmp_path / "two.tif")
    np.testing.assert_array_equal(one, two)
    assert (one[0, :20] == 255).all() and (one[0, 20:] < 255).all()


def test_nothing_is_fetched_for_local_scenes(tmp_path, scene):
    """With every socket forbidden a run works."""
    code = f"""
import socket
def refuse(*a, **k): raise AssertionError("the network was used")
socket.socket.connect = socket.create_connection = refuse
from tests.predict.test_guarded import FULL, predict
assert not predict({scene!r}, {str(tmp_path / "map.tif")!r}, FULL).failures
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    with rasterio.open(tmp_path / "map.tif") as dataset:
        assert dataset.shape == (90, 60)


def test_what_does_not_fit_is_said_before_it_starts(tmp_path, scene, monkeypatch):
    """The model is asked for one small tile, and the sentence names a tile that fits."""
    monkeypatch.setattr("crispseg.memory.free", lambda: 40 << 20)
    monkeypatch.setattr("crispseg.predict.estimate._timed", lambda evaluator, tile: (0.0, 30 << 20))
    request = dataclasses.replace(SMALL, settings=Settings(1024, 256))
    wide = write_raster(tmp_path / "wide.tif", random_pixels(3, 1100, 1100), **UTM)
    ((_, said),) = predict(wide, tmp_path / "map.tif", request).failures
    assert "40 are free or allowed" in said and "lower --tile to 128" in said
    assert sorted(os.listdir(tmp_path)) == ["scene.tif", "wide.tif"]
    assert not predict(scene, tmp_path / "map.tif").failures, "small tiles fit"


@pytest.mark.slow
def test_two_gibibytes_are_enough(tmp_path):
    """A hard limit on the address space, the shipped model, the default tile."""
    scene = write_raster(tmp_path / "scene.tif", random_pixels(3, 1300, 1300, high=255), **UTM)
    code = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from crispseg.cli.main import main
sys.exit(main(["predict", {scene!r}, "-o", {str(tmp_path / "map.tif")!r}, "--confidence", "--polygons", "gpkg"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 or "lower --tile" in done.stderr, done.stderr


def test_a_note_that_names_the_folder_itself_moves_nothing(tmp_path):
    """Found by the fuzz campaign."""
    target = tmp_path / "map.tif"
    noted = {"made": dict.fromkeys(("gdal_style", "qgis_style", "classes"), ""), "result": {}}
    place = Workplace(target)
    (place.folder / "moves.json").write_text(json.dumps(noted))
    place.release()
    scene = write_raster(tmp_path / "scene.tif", random_pixels(3, 40, 40), **UTM)
    report = predict_scenes([scene], str(target), StandIn(), Request(Settings(32, 8)))
    assert not report.failures and target.is_file() and not work_folder(target).exists()


def test_a_shortage_on_the_way_says_what_to_lower(tmp_path, scene):
    model = StandIn()

    def fail(x):
        raise RuntimeError("can't start new thread")

    model.before = fail
    ((_, said),) = predict(scene, tmp_path / "map.tif", model=model).failures
    assert said.startswith("out of memory; lower --tile")
