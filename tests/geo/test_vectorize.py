"""`crisp vectorize`: a class map on disk to polygons."""

import sqlite3
import subprocess
import sys

import numpy as np
import pyogrio
import pytest
import shapely
from rasterio import Affine
from rasterio.features import rasterize
from rasterio.warp import transform

from crispseg.cli import main as cli
from crispseg.errors import UserError
from crispseg.geo import layers
from crispseg.geo import polygons as polygon_files
from crispseg.geo.vectorize import vectorize_map
from tests.geo.rasters import UTM, write_raster


@pytest.fixture
def crisp(monkeypatch, capsys):
    monkeypatch.setitem(cli.VERBS, "vectorize", "")

    def run(*words):
        status = cli.main(["vectorize", *map(str, words)])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def classes():
    coarse = np.random.default_rng(0).integers(0, 3, (70, 40)).astype(np.uint8)
    coarse[:3, :5] = 255
    return coarse.repeat(10, axis=0).repeat(10, axis=1)  # 700 rows: two strips


def read(path):
    meta, _, geometry, fields = pyogrio.raw.read(path, layer="classes")
    return shapely.from_wkb(geometry), dict(zip(meta["fields"], fields, strict=True))


def on_grid(polygons):
    """GeoJSON's longitudes and latitudes back in the grid's reference system."""

    def back(points):
        return np.array(transform("EPSG:4326", UTM["crs"], points[:, 0], points[:, 1])).T

    return shapely.transform(polygons, back)


@pytest.mark.parametrize("ending", ["gpkg", "geojson", "fgb"])
def test_polygons_cover_the_map_whatever_the_batches(crisp, classes, tmp_path, ending, monkeypatch):
    monkeypatch.setattr(polygon_files, "_AT_ONCE", 100)
    path = write_raster(tmp_path / "map.tif", classes, nodata=255, tags={"CLASSES": '{"1": "roof"}'}, **UTM)
    status, out, _ = crisp(path, "-o", tmp_path / f"map.{ending}")
    polygons, columns = read(tmp_path / f"map.{ending}")
    assert status == 0 and f"{len(polygons)} regions" in out
    assert shapely.is_valid(polygons).all()
    pairs = zip(polygons, columns["class_id"], strict=True)
    if ending == "geojson":
        polygons = on_grid(polygons)
        pairs = zip(polygons, columns["class_id"], strict=True)
    burnt = rasterize(pairs, classes.shape, 255, transform=UTM["transform"], dtype="uint8")
    np.testing.assert_array_equal(burnt, classes)
    assert set(columns) == {"class_id", "class", "area"}
    assert set(columns["class"]) == {"class 0", "roof", "class 2"}
    np.testing.assert_allclose(columns["area"].sum(), 0.25 * (classes != 255).sum())
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_fewer_smaller_and_simpler(crisp, classes, tmp_path):
    path = write_raster(tmp_path / "map.tif", classes, nodata=255, **UTM)
    confidence = write_raster(tmp_path / "sure.tif", np.where(classes == 255, 255, 127).astype(np.uint8), **UTM)
    crisp(path, "-o", tmp_path / "plain.gpkg")
    crisp(path, "-o", tmp_path / "merged.gpkg", "--min-area", 60, "--simplify", 2, "--confidence", confidence)
    plain, _ = read(tmp_path / "plain.gpkg")
    merged, columns = read(tmp_path / "merged.gpkg")
    assert len(merged) < len(plain)
    assert columns["area"].min() >= 60
    np.testing.assert_allclose(columns["area"].sum(), 0.25 * (classes != 255).sum())
    np.testing.assert_allclose(columns["confidence"], 0.5)
    assert shapely.is_valid(merged).all()
    assert shapely.get_num_coordinates(merged).sum() < 0.7 * shapely.get_num_coordinates(plain).sum()
    overlap = shapely.area(merged).sum() - shapely.union_all(merged).area
    assert abs(overlap) < 1e-3


def test_another_nodata_value_and_the_same_bytes_twice(crisp, tmp_path):
    classes = np.random.default_rng(1).integers(0, 3, (30, 40)).astype(np.uint8)
    path = write_raster(tmp_path / "map.tif", classes, nodata=0, **UTM)
    crisp(path, "-o", tmp_path / "one.gpkg")
    crisp(path, "-o", tmp_path / "two.gpkg")
    _, columns = read(tmp_path / "one.gpkg")
    assert set(columns["class_id"]) == {1, 2}
    assert (tmp_path / "one.gpkg").read_bytes() == (tmp_path / "two.gpkg").read_bytes()


def test_an_empty_map_makes_an_empty_layer(crisp, tmp_path):
    path = write_raster(tmp_path / "map.tif", np.full((20, 20), 255, np.uint8), nodata=255, **UTM)
    for ending in ("gpkg", "geojson", "fgb"):
        status, out, _ = crisp(path, "-o", tmp_path / f"map.{ending}")
        assert status == 0 and "0 regions" in out
        assert len(read(tmp_path / f"map.{ending}")[0]) == 0


def test_mistakes_are_explained(crisp, classes, tmp_path):
    path = write_raster(tmp_path / "map.tif", classes, **UTM)
    wrong = write_raster(tmp_path / "wrong.tif", classes[:50].astype(np.float32), **UTM)
    wide = write_raster(tmp_path / "wide map.tif", classes.astype(np.uint16), **UTM)
    three = write_raster(tmp_path / "three.tif", np.stack([classes] * 3), **UTM)
    for words, reason in [
        ((wide, "-o", tmp_path / "map.gpkg"), f"gdal_translate -ot Byte '{wide}' 'wide map_8bit.tif'"),
        ((three, "-o", tmp_path / "map.gpkg"), "it has 3 bands, and a class map has one"),
        ((path, "-o", tmp_path / "map.shp"), "are written to .gpkg"),
        ((wrong, "-o", tmp_path / "map.gpkg"), "is no class map"),
        ((path, "-o", tmp_path / "map.gpkg", "--confidence", wrong), "do not belong together"),
        ((path, "-o", tmp_path / "map.gpkg", "--min-area", -1), "must not be negative"),
        ((path, "-o", tmp_path / "map.gpkg", "--min-area", "inf"), "are finite numbers"),
        ((path, "-o", tmp_path / "map.gpkg", "--simplify", "nan"), "are finite numbers"),
        ((tmp_path / "none.tif", "-o", tmp_path / "map.gpkg"), "there is no file"),
        ((path, "-o", tmp_path / "wrong.tif" / "map.gpkg"), "cannot write"),
    ]:
        status, _, err = crisp(*words)
        assert status == 1 and reason in err and "Traceback" not in err


def test_what_is_no_confidence_of_the_map_is_refused(crisp, classes, tmp_path):
    """Fractions, probabilities, class ids and the confidence of another place gave numbers that meant nothing."""
    path = write_raster(tmp_path / "map.tif", classes, **UTM)
    away = {**UTM, "transform": UTM["transform"] @ Affine.translation(3, 0)}
    colours = {k: (k, k, k, 255) for k in range(3)}
    for pixels, options, reason in [
        ((classes / 254).astype(np.float32), UTM, "has numbers of float32"),
        (np.stack([classes] * 3), UTM, "it has 3 bands, not one"),
        (classes, {**UTM, "colormap": colours, "photometric": "palette"}, "its band is one of class ids"),
        (classes, away, "lies elsewhere than"),
    ]:
        other = write_raster(tmp_path / "other.tif", pixels, **options)
        status, _, err = crisp(path, "-o", tmp_path / "map.gpkg", "--confidence", other)
        assert status == 1 and reason in err and not (tmp_path / "map.gpkg").exists()
    assert crisp(path, "-o", tmp_path / "map.gpkg", "--confidence", write_raster(tmp_path / "c.tif", classes))[0] == 0


def test_what_a_mask_hides_is_no_region(crisp, classes, tmp_path):
    mask = np.full(classes.shape, 255, np.uint8)
    mask[:200] = 0
    path = write_raster(tmp_path / "map.tif", classes, mask=mask, **UTM)
    assert crisp(path, "-o", tmp_path / "map.gpkg")[0] == 0
    polygons, _ = read(tmp_path / "map.gpkg")
    np.testing.assert_array_equal(
        rasterize(polygons, classes.shape, transform=UTM["transform"]), (mask > 0) & (classes != 255)
    )


def test_what_ogr_says_is_heeded(tmp_path):
    """Found by the kill campaign: a GeoPackage whose index or reference system could not be written looked whole."""
    from pyogrio.errors import DataSourceError

    from crispseg.geo.ogr import _gdal, heeding_failures

    gdal = _gdal()
    with heeding_failures():
        gdal.CPLError(2, 1, b"only a warning")
    with pytest.raises(DataSourceError, match=r"COMMIT\) failed: disk I/O error"), heeding_failures():
        gdal.CPLError(3, 1, b"sqlite3_exec(COMMIT) failed: disk I/O error")


def test_a_package_that_cannot_be_styled_is_one_sentence(tmp_path, monkeypatch):
    path = write_raster(tmp_path / "map.tif", np.zeros((8, 8), np.uint8), nodata=255, **UTM)

    def fail(*args):
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(layers, "add_style_to_geopackage", fail)
    with pytest.raises(UserError, match=r"cannot write .*map.gpkg: disk I/O error"):
        vectorize_map(path, str(tmp_path / "map.gpkg"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["map.tif"]


@pytest.fixture
def small_disk(tmp_path):
    """A disk of one MiB; only root may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("may not mount")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
@pytest.mark.parametrize("ending", [".gpkg", ".geojson", ".fgb"])
def test_a_full_disk_is_told_as_by_every_verb(tmp_path, small_disk, ending):
    """SQLite and GDAL were quoted, with the room there was once the unfinished file had gone, and a traceback of
    rasterio's followed."""
    noise = np.random.default_rng(0).integers(0, 3, (1, 500, 500)).astype(np.uint8)
    path, target = write_raster(tmp_path / "map.tif", noise, **UTM), small_disk / f"a{ending}"
    command = [sys.executable, "-m", "crispseg.cli.main", "vectorize", path, "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (1, f"crisp: no space left to write {target}; free some and run again\n")
    assert not list(small_disk.iterdir())


@pytest.mark.parametrize("error", [sqlite3.OperationalError("database or disk is full"), OSError(28, "full")])
def test_a_package_whose_disk_is_full_when_it_is_styled(tmp_path, monkeypatch, error):
    def full(*arguments):
        raise error

    monkeypatch.setattr(layers, "add_style_to_geopackage", full)
    path = write_raster(tmp_path / "map.tif", np.zeros((1, 4, 4), np.uint8), **UTM)
    with pytest.raises(UserError, match="^no space left to write .*map.gpkg; free some and run again$"):
        vectorize_map(path, str(tmp_path / "map.gpkg"))
