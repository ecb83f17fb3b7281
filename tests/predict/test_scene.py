"""Scenes from file to file: what the maps hold, and that a killed run gives the same bytes when it goes on."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyogrio
import pytest
import rasterio
import shapely
from rio_cogeo.cogeo import cog_validate

from crispseg.errors import UserError
from crispseg.geo.maps import Legend, MapChoice
from crispseg.geo.polygons import PolygonChoice
from crispseg.geo.scenes import Reading
from crispseg.predict import journal as journals
from crispseg.predict.bands import Pace
from crispseg.predict.batch import predict_scenes, weights_version
from crispseg.predict.engines import LocalEngine
from crispseg.predict.scene import Request, Watcher, predict_scene
from crispseg.predict.work import Settings
from tests.geo.rasters import UTM, random_pixels, read_raster, write_raster
from tests.geo.test_vectorize import on_grid
from tests.predict.standins import StandIn

SMALL = Request(Settings(32, 8), pace=Pace(2, 2))
MAPS = ("boundaries", "confidence", "probabilities")
FULL = dataclasses.replace(SMALL, maps=MapChoice(True, True, True), polygons=PolygonChoice("gpkg"))


def smooth_scene(path, height=150, width=110, **profile):
    """Blotches, so that polygons are few."""
    blocks = random_pixels(3, height // 10 + 1, width // 10 + 1)
    pixels = blocks.repeat(10, axis=1).repeat(10, axis=2)[:, :height, :width]
    pixels[:, :12, :17] = 0
    return write_raster(path, pixels, **{"nodata": 0, **UTM, **profile}), pixels


def expected_classes(pixels):
    grey = pixels.astype(int).sum(axis=0)
    classes = np.abs(grey[None] - 20 * np.arange(5)[:, None, None]).argmin(axis=0)
    return np.where((pixels == 0).all(axis=0), 255, classes)


def run(scene, target, request=SMALL, model=None, watcher=None, existing="refuse"):
    model = model or StandIn()
    legend = Legend.of(model, weights_version(model))
    return predict_scene(scene, Path(target), model, legend, request, LocalEngine(), watcher or Watcher(), existing)


def files_in(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def test_all_maps_of_a_scene(tmp_path):
    scene, pixels = smooth_scene(tmp_path / "scene.tif")
    result = run(scene, tmp_path / "out" / "map.tif", FULL)
    names = [f"map{end}" for end in (".gpkg", ".qml", ".tif", ".tif.aux.xml", *(f"_{m}.tif" for m in MAPS))]
    assert files_in(tmp_path / "out") == names, "and nothing else"
    assert sorted(Path(name).name for name in result.files) == names
    classes = read_raster(tmp_path / "out" / "map.tif")[0]
    np.testing.assert_array_equal(classes, expected_classes(pixels))
    confidence = read_raster(tmp_path / "out" / "map_confidence.tif")[0]
    probabilities = read_raster(tmp_path / "out" / "map_probabilities.tif")
    np.testing.assert_array_equal(probabilities.max(axis=0), confidence)
    np.testing.assert_array_equal(confidence == 255, classes == 255)
    has_data = classes != 255
    assert np.abs(probabilities[:, has_data].astype(int).sum(axis=0) - 254).max() <= 3
    assert result.unit == "m2"
    assert [row["area"] for row in result.classes] == [0.25 * (classes == k).sum() for k in range(5)]


def test_the_boundary_map(tmp_path):
    scene, pixels = smooth_scene(tmp_path / "scene.tif")
    run(scene, tmp_path / "map.tif", dataclasses.replace(SMALL, maps=MapChoice(boundaries=True)))
    classes, height, width = expected_classes(pixels), *pixels.shape[1:]
    expected = np.zeros((height, width), np.uint8)
    for y in range(height):
        for x in range(width):
            around = [(y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)]
            near = [classes[v, u] for v, u in around if 0 <= v < height and 0 <= u < width]
            expected[y, x] = 255 if classes[y, x] == 255 else any(k not in (255, classes[y, x]) for k in near)
    np.testing.assert_array_equal(read_raster(tmp_path / "map_boundaries.tif")[0], expected)


@pytest.mark.parametrize("compress", ["deflate", "zstd", "lzw"])
def test_maps_are_valid_cogs_that_say_what_they_are(tmp_path, compress):
    scene, _ = smooth_scene(tmp_path / "scene.tif", 700, 1100, tags={"AREA_OR_POINT": "Point"})
    request = Request(Settings(512, 64), maps=MapChoice(True, True, True, compress))
    run(scene, tmp_path / "map.tif", request)
    for path in sorted(tmp_path.glob("map*.tif")):
        assert cog_validate(path, strict=True) == (True, [], [])
        with rasterio.open(path) as dataset, rasterio.open(scene) as original:
            assert dataset.crs == original.crs and dataset.transform == original.transform
            assert dataset.shape == original.shape
            assert set(dataset.dtypes) == {"uint8"} and dataset.nodata == 255
            assert dataset.block_shapes[0] == (512, 512) and dataset.overviews(1)
            assert dataset.compression.name.lower() == compress
            tags = dataset.tags()
            assert tags["AREA_OR_POINT"] == "Point"
            assert (tags["MODEL"], tags["MODEL_VERSION"]) == ("stand_in", weights_version(StandIn()))
            assert tags["TIFFTAG_SOFTWARE"].startswith("crispseg ")
    with rasterio.open(tmp_path / "map.tif") as dataset:
        assert dataset.tags()["CLASSES"].startswith('{"0": "kind 0", "1": "kind 1"')
        assert dataset.colormap(1)[3] == (30, 252, 3, 255)
        assert len(dataset.colormap(1)) == 5, "our classes and no black ones"
    with rasterio.open(tmp_path / "map_probabilities.tif") as dataset:
        assert dataset.descriptions == tuple(f"kind {k}" for k in range(5))
        assert dataset.scales == (1 / 254,) * 5


def test_margins_without_data_change_nothing_within(tmp_path):
    """A model that looks 3 px around saw the filler there; it sees the scene's reflection, as beyond its edges."""
    pixels = random_pixels(3, 90, 70, seed=4)
    padded = np.pad(pixels, ((0, 0), (50, 40), (30, 60)))
    scenes = [write_raster(tmp_path / "alone.tif", pixels, **UTM)]
    scenes += [write_raster(tmp_path / "framed.tif", padded, nodata=0, **UTM)]
    request = dataclasses.replace(SMALL, settings=Settings(32, 16))
    assert not predict_scenes(scenes, str(tmp_path / "maps"), StandIn(reach=3), request).failures
    alone, framed = (read_raster(tmp_path / "maps" / name)[0] for name in ("alone.tif", "framed.tif"))
    np.testing.assert_array_equal(framed[50:140, 30:100], alone)
    assert (framed == 255).sum() == framed.size - alone.size


def test_polygons_of_a_scene_cover_its_map(tmp_path):
    scene, pixels = smooth_scene(tmp_path / "scene.tif")
    for ending in ("gpkg", "geojson", "fgb"):
        run(scene, tmp_path / f"{ending}.tif", dataclasses.replace(SMALL, polygons=PolygonChoice(ending)))
        meta, _, geometry, fields = pyogrio.raw.read(tmp_path / f"{ending}.{ending}", layer="classes")
        columns = dict(zip(meta["fields"], fields, strict=True))
        polygons = shapely.from_wkb(geometry)
        assert shapely.is_valid(polygons).all()
        assert meta["crs"] == ("EPSG:4326" if ending == "geojson" else "EPSG:32633")
        if ending == "geojson":
            polygons = on_grid(polygons)
        with rasterio.open(tmp_path / f"{ending}.tif") as dataset:
            pairs = zip(polygons, columns["class_id"], strict=True)
            burnt = rasterio.features.rasterize(pairs, dataset.shape, 255, transform=dataset.transform, dtype="uint8")
        np.testing.assert_array_equal(burnt, expected_classes(pixels))
        np.testing.assert_allclose(shapely.area(polygons), columns["area"], rtol=1e-4)
        assert columns["class"].tolist() == [f"kind {k}" for k in columns["class_id"]]
        assert ((columns["confidence"] > 0.2) & (columns["confidence"] <= 1)).all()


def test_areas_in_web_mercator_are_the_grounds(tmp_path):
    north = rasterio.Affine(1.9, 0, 2_770_000, 0, -1.9, 8_399_800)  # at 60 degrees: 0.95 m
    scene, _ = smooth_scene(tmp_path / "scene.tif", crs="EPSG:3857", transform=north)
    result = run(scene, tmp_path / "map.tif", dataclasses.replace(SMALL, polygons=PolygonChoice("gpkg")))
    ground = 150 * 110 * 0.95**2
    assert result.unit == "m2" and "pixels of 0.95" in result.read
    assert sum(row["area"] for row in result.classes) == pytest.approx(ground, rel=0.01)
    meta, _, _, fields = pyogrio.raw.read(tmp_path / "map.gpkg", layer="classes")
    areas = dict(zip(meta["fields"], fields, strict=True))["area"]
    assert areas.sum() == pytest.approx(sum(row["area"] for row in result.classes))


class Crash(Exception):
    """Stands for the power going off."""


class Heard(Watcher):
    def __init__(self):
        self.words = ""

    def say(self, what):
        self.words += what


class CrashAfter(Watcher):
    def __init__(self, tiles):
        self.left = tiles

    def tile_done(self):
        self.left -= 1
        if self.left < 0:
            raise Crash


def read_all(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}


def test_a_run_that_crashed_anywhere_goes_on_to_the_same_bytes(tmp_path):
    scene, _ = smooth_scene(tmp_path / "scene.tif")
    run(scene, tmp_path / "whole" / "map.tif", FULL)
    expected = read_all(tmp_path / "whole")
    for tiles in (0, 1, 5, 11, 18):
        target = tmp_path / f"after_{tiles}" / "map.tif"
        with pytest.raises(Crash):
            run(scene, target, FULL, watcher=CrashAfter(tiles))
        assert not target.exists()
        model, evaluated = StandIn(), []
        model.before = lambda x, evaluated=evaluated: evaluated.append(len(x))
        run(scene, target, FULL, model)
        assert read_all(target.parent) == expected
        if tiles == 18:
            assert len(evaluated) == 25, "the finished bands were not made again"


def test_a_scene_that_was_looked_at_meanwhile_is_gone_on_with(tmp_path):
    """A GIS notes statistics and overviews beside a scene: the finished tiles of a night were thrown away for that."""
    scene, _ = smooth_scene(tmp_path / "scene.tif")
    with pytest.raises(Crash):
        run(scene, tmp_path / "out" / "map.tif", FULL, watcher=CrashAfter(18))
    Path(write_raster(tmp_path / "half.tif", random_pixels(3, 75, 55))).rename(tmp_path / "scene.tif.ovr")
    with rasterio.open(scene) as dataset:
        dataset.stats()
        assert [Path(name).suffix for name in dataset.files] == [".tif", ".ovr", ".xml"]
    heard = Heard()
    run(scene, tmp_path / "out" / "map.tif", FULL, watcher=heard)
    assert "starts anew" not in heard.words


def test_a_scene_that_is_written_while_it_is_mapped_is_told_of(tmp_path):
    """What a copy had not reached yet was mapped as black, without a word."""
    scene, pixels = smooth_scene(tmp_path / "scene.tif")

    class Copying(Heard):
        def tile_done(self):
            with rasterio.open(scene, "r+") as dataset:
                dataset.write(pixels // 2)

    heard = Copying()
    run(scene, tmp_path / "out" / "map.tif", FULL, watcher=heard)
    assert f"{scene} has changed since its run began" in heard.words
    heard = Heard()
    run(scene, tmp_path / "again" / "map.tif", FULL, watcher=heard)
    assert "has changed" not in heard.words


@pytest.mark.parametrize(
    ("placed", "reading"),
    [
        ({"crs": "EPSG:3857", "transform": rasterio.Affine(1.9, 0, 2_770_000, 0, -1.9, 8_399_800)}, Reading((), 0.7)),
        ({"crs": None, "transform": rasterio.Affine.identity()}, Reading((), 0.7, pixel_size=0.9)),
    ],
)
def test_at_another_scale_it_goes_on_to_the_same_bytes(tmp_path, placed, reading):
    scene, _ = smooth_scene(tmp_path / "scene.tif", **placed)
    request = dataclasses.replace(FULL, reading=reading)
    result = run(scene, tmp_path / "whole" / "map.tif", request)
    assert result.unit == "m2" and " m resampled to 0." in result.read
    with pytest.raises(Crash):
        run(scene, tmp_path / "again" / "map.tif", request, watcher=CrashAfter(18))
    heard = Heard()
    assert run(scene, tmp_path / "again" / "map.tif", request, watcher=heard).classes == result.classes
    assert "starts anew" not in heard.words
    assert read_all(tmp_path / "again") == read_all(tmp_path / "whole")


def test_a_run_killed_while_renaming_is_completed(tmp_path, monkeypatch):
    scene, _ = smooth_scene(tmp_path / "scene.tif")
    run(scene, tmp_path / "whole" / "map.tif", FULL)
    for survived in range(8):
        folder = tmp_path / f"after_{survived}"
        left = [survived]
        link = os.link

        def failing(made, path, left=left, link=link, **options):
            left[0] -= 1
            if left[0] < 0:
                raise Crash
            link(made, path, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, "link", failing)
            if survived < 7:
                with pytest.raises(Crash):
                    run(scene, folder / "map.tif", FULL)
            else:
                run(scene, folder / "map.tif", FULL)
        if survived < 7:
            assert not (folder / "map.tif").exists(), "the class map comes last"
            report = predict_scenes([scene], str(folder / "map.tif"), StandIn(), FULL)
            assert not report.failures
        assert read_all(folder) == read_all(tmp_path / "whole")


def test_finished_files_are_found_from_another_folder(tmp_path, monkeypatch):
    scene, pixels = smooth_scene(tmp_path / "scene.tif")
    (tmp_path / "elsewhere").mkdir()

    def failing(made, path, **options):
        raise Crash

    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setattr(os, "link", failing)
        with pytest.raises(Crash):
            run("scene.tif", "map.tif")
    monkeypatch.chdir(tmp_path / "elsewhere")
    run(scene, tmp_path / "map.tif")
    np.testing.assert_array_equal(read_raster(tmp_path / "map.tif")[0], expected_classes(pixels))


def test_a_journal_of_another_job_is_not_used(tmp_path):
    scene, pixels = smooth_scene(tmp_path / "scene.tif")
    target = tmp_path / "map.tif"
    for change, said in (("model", "model.version"), ("scene", f"files.{scene}"), ("tile", "request.settings.tile")):
        with pytest.raises(Crash):
            run(scene, target, watcher=CrashAfter(15), existing="replace")
        assert list((tmp_path / ".map.tif.crisp").glob("band-*"))
        model, request = StandIn(), SMALL
        if change == "model":
            model.weight.data.fill_(2.0)
        elif change == "scene":
            pixels = pixels.copy()
            pixels[0] //= 2
            write_raster(scene, pixels, nodata=0, **UTM)
        else:
            request = dataclasses.replace(SMALL, settings=Settings(40, 8))
        evaluated = []
        model.before = lambda x, evaluated=evaluated: evaluated.append(len(x))
        heard = Heard()
        run(scene, target, request, model, heard, existing="replace")
        assert len(evaluated) >= 12
        assert f"({said} differs)" in heard.words
        np.testing.assert_array_equal(read_raster(target)[0], expected_classes(pixels))


def test_two_runs_for_one_output_do_not_mix(tmp_path):
    scene, _ = smooth_scene(tmp_path / "scene.tif")

    class RunsAgain(Watcher):
        def tile_done(self):
            with pytest.raises(UserError, match="another run is making"):
                run(scene, tmp_path / "map.tif")

    run(scene, tmp_path / "map.tif", watcher=RunsAgain())
    assert files_in(tmp_path) == ["map.qml", "map.tif", "map.tif.aux.xml", "scene.tif"]


def test_a_damaged_scene_leaves_nothing_behind_and_the_others_are_done(tmp_path):
    good, pixels = smooth_scene(tmp_path / "good.tif")
    bad = tmp_path / "bad.tif"
    noise = np.random.default_rng(0).integers(1, 30, (3, 150, 110)).astype(np.uint8)
    write_raster(bad, noise, tiled=True, blockxsize=32, blockysize=32, compress="deflate", **UTM)
    os.truncate(bad, bad.stat().st_size // 2)
    wide = write_raster(tmp_path / "wide.tif", random_pixels(5, 20, 20), photometric="minisblack", **UTM)
    (tmp_path / "text.tif").write_text("no image")
    scenes = [str(bad), wide, str(tmp_path / "text.tif"), str(tmp_path / "none.tif"), good]
    report = predict_scenes(scenes, str(tmp_path / "maps"), StandIn(), SMALL)
    assert files_in(tmp_path / "maps") == ["good.qml", "good.tif", "good.tif.aux.xml"]
    np.testing.assert_array_equal(read_raster(tmp_path / "maps" / "good.tif")[0], expected_classes(pixels))
    reasons = dict(report.failures)
    assert list(reasons) == scenes[:4]
    assert "damaged" in reasons[str(bad)]
    assert "takes 3 bands" in reasons[wide]
    assert "cannot be read as a raster" in reasons[scenes[2]]
    assert "no file" in reasons[scenes[3]]


def test_a_full_disk_is_explained_and_the_run_can_go_on(tmp_path, monkeypatch):
    scene, pixels = smooth_scene(tmp_path / "scene.tif")
    encoded = journals.encoded
    calls = []

    def full(band):
        calls.append(band.index)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return encoded(band)

    monkeypatch.setattr(journals, "encoded", full)
    report = predict_scenes([scene], str(tmp_path / "map.tif"), StandIn(), SMALL)
    assert "no space left" in report.failures[0][1]
    assert files_in(tmp_path) == [".map.tif.crisp", "scene.tif"]
    assert not predict_scenes([scene], str(tmp_path / "map.tif"), StandIn(), SMALL).failures
    np.testing.assert_array_equal(read_raster(tmp_path / "map.tif")[0], expected_classes(pixels))


def test_a_disk_that_fills_while_the_map_is_written(tmp_path):
    """GDAL's own writes fail: the limit on file sizes makes them, in a process of its own."""
    scene = write_raster(tmp_path / "scene.tif", random_pixels(3, 600, 600), **UTM)
    code = f"""
import resource, signal
from crispseg.geo.maps import MapChoice
from crispseg.predict.batch import predict_scenes
from crispseg.predict.scene import Request
from crispseg.predict.work import Settings
from tests.predict.standins import StandIn
resource.setrlimit(resource.RLIMIT_FSIZE, (90_000, 90_000))
report = predict_scenes([{scene!r}], {str(tmp_path / "map.tif")!r}, StandIn(), Request(Settings(64, 8)))
print(report.failures[0][1])
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"cannot write {tmp_path / 'map.tif'}: ")
    assert "make room or choose another place" in done.stdout
    assert not (tmp_path / "map.tif").exists()
    assert not predict_scenes([scene], str(tmp_path / "map.tif"), StandIn(), Request(Settings(64, 8))).failures


def test_killed_at_random_moments_it_gives_the_same_bytes():
    """kill -9, again and again, in processes of their own."""
    script = Path(__file__).with_name("killed_runs.py")
    done = subprocess.run(
        [sys.executable, str(script), "5"], capture_output=True, text=True, cwd=script.parents[2], timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("same bytes") == 5


@pytest.mark.parametrize(
    ("kind", "profile"),
    [
        ("turned", {"transform": rasterio.Affine.rotation(30) @ rasterio.Affine.scale(2, -2), "crs": "EPSG:32633"}),
        ("geographic", {"transform": rasterio.Affine(1e-5, 0, 10, 0, -1e-5, 50), "crs": "EPSG:4326"}),
        ("plain", {"transform": None, "crs": None}),
    ],
)
@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_every_georeference_is_kept(tmp_path, kind, profile):
    scene, pixels = smooth_scene(tmp_path / "scene.tif", **profile)
    result = run(scene, tmp_path / "map.tif", dataclasses.replace(SMALL, polygons=PolygonChoice("gpkg")))
    np.testing.assert_array_equal(read_raster(tmp_path / "map.tif")[0], expected_classes(pixels))
    with rasterio.open(tmp_path / "map.tif") as made, rasterio.open(scene) as original:
        assert made.crs == original.crs
        np.testing.assert_allclose(made.transform, original.transform)
    assert result.unit == ("px" if kind == "plain" else "m2")
    assert cog_validate(tmp_path / "map.tif")[0]
    area = sum(row["area"] for row in result.classes)
    polygons = pyogrio.raw.read(tmp_path / "map.gpkg", layer="classes")
    assert sum(polygons[3][2]) == pytest.approx(area)
    pixel = {"turned": 4.0, "geographic": 0.795, "plain": 1.0}[kind]
    assert area == pytest.approx(pixel * (expected_classes(pixels) < 255).sum(), rel=0.01)


def test_a_model_is_fused_once_for_all_scenes(tmp_path):
    """Of a thousand small scenes most of the time went into fusing it again for each."""
    scenes = [smooth_scene(tmp_path / f"{name}.tif")[0] for name in "abc"]
    model, times = StandIn(), []
    model.fused = lambda *_, **__: times.append(1) or model
    report = predict_scenes(scenes, str(tmp_path / "maps"), model, SMALL)
    assert len(report.results) == 3 and not report.failures and len(times) == 1


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 90), (90, 1), (33, 32), (2, 65)])
def test_tiny_and_narrow_scenes(tmp_path, height, width):
    pixels = random_pixels(3, height, width)
    scene = write_raster(tmp_path / "scene.tif", pixels, **UTM)
    run(scene, tmp_path / "map.tif")
    np.testing.assert_array_equal(read_raster(tmp_path / "map.tif")[0], expected_classes(pixels))


def test_another_resolution_changes_the_grid_of_the_map(tmp_path):
    scene, _ = smooth_scene(tmp_path / "scene.tif")
    run(scene, tmp_path / "map.tif", dataclasses.replace(SMALL, reading=Reading(resolution=1.0)))
    with rasterio.open(tmp_path / "map.tif") as made, rasterio.open(scene) as original:
        assert made.shape == (75, 55) and made.bounds == original.bounds


def test_outputs_that_cannot_be_are_explained(tmp_path):
    scene, _ = smooth_scene(tmp_path / "scene.tif")
    (tmp_path / "sub").mkdir()
    other, _ = smooth_scene(tmp_path / "sub" / "scene.tif")

    def refusal(scenes, output, request=SMALL, **options):
        with pytest.raises(UserError) as error:
            predict_scenes(scenes, str(output), StandIn(), request, **options)
        return str(error.value)

    assert "name a folder" in refusal([scene, other], tmp_path / "map.tif")
    assert "must end in .tif" in refusal([scene], tmp_path / "map.png")
    assert "two scenes would both be written" in refusal([scene, other], tmp_path / "maps")
    assert "which is read" in refusal([scene], scene)
    one_file = dataclasses.replace(SMALL, polygons=PolygonChoice(str(tmp_path / "all.gpkg")))
    other, _ = smooth_scene(tmp_path / "other.tif")
    assert "--polygons gpkg" in refusal([scene, other], tmp_path / "maps", one_file)
    assert "existing files" in refusal([scene], tmp_path / "map.tif", existing="keep")
    assert "unknown engine" in refusal([scene], tmp_path / "map.tif", engine="rey")
    with pytest.raises(UserError, match=r"not shape\.shp"):
        PolygonChoice("shape.shp")


@pytest.mark.parametrize("kind", ["below a file", "read-only"])
def test_polygons_that_cannot_be_written_are_noticed_before_the_first_tile(tmp_path, kind):
    scene, _ = smooth_scene(tmp_path / "scene.tif")
    place = tmp_path / "place"
    if kind == "read-only":
        place.mkdir(mode=0o555)
        if os.access(place, os.W_OK):
            pytest.skip("root may write anywhere")
    else:
        place.write_text("a file, not a folder", encoding="utf-8")
    model = StandIn()
    model.forward = lambda image: pytest.fail("a tile was computed")
    request = dataclasses.replace(SMALL, polygons=PolygonChoice(str(place / "all.gpkg")))
    report = predict_scenes([scene], str(tmp_path / "map.tif"), model, request)
    assert re.search(r"(cannot|may not) write .*all.gpkg", str(report.failures))
    assert files_in(tmp_path) == ["place", "scene.tif"]


SITE = rasterio.CRS.from_wkt('LOCAL_CS["site",UNIT["metre",1],AXIS["x",EAST],AXIS["y",NORTH]]')


@pytest.mark.parametrize(
    ("polygons", "stac", "reason"),
    [
        (
            "geojson",
            False,
            "no longitudes and latitudes",
        ),
        ("gpkg", True, "no longitudes and latitudes"),
        ("parquet", False, "GeoParquet needs pyarrow"),
    ],
)
def test_formats_that_cannot_be_written_are_refused_before_the_first_tile(
    tmp_path, monkeypatch, polygons, stac, reason
):
    """They were refused after a night's work; and the other format that was advised began anew."""
    if stac:
        pytest.importorskip("pystac")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    smooth_scene(tmp_path / "scene.tif", crs=SITE, transform=UTM["transform"])
    request = dataclasses.replace(SMALL, polygons=PolygonChoice(polygons), stac=stac)
    model = StandIn()
    model.forward = lambda image: pytest.fail("a tile was computed")
    report = predict_scenes([str(tmp_path / "scene.tif")], str(tmp_path / "map.tif"), model, request)
    assert reason in report.failures[0][1]
    assert files_in(tmp_path) == ["scene.tif"]


def test_existing_maps_are_refused_skipped_or_replaced(tmp_path):
    scene, _ = smooth_scene(tmp_path / "scene.tif")
    target = tmp_path / "map.tif"
    target.write_text("precious")
    assert "is there already" in predict_scenes([scene], str(target), StandIn(), SMALL).failures[0][1]
    assert predict_scenes([scene], str(target), StandIn(), SMALL, existing="skip").skipped == (str(target),)
    assert target.read_text() == "precious"
    assert predict_scenes([scene], str(target), StandIn(), SMALL, existing="replace").results
    assert cog_validate(target)[0]
