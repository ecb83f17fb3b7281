"""Polygons that cannot be drawn: told in a sentence, or left out. Found by the fuzz campaign."""

import json

import numpy as np
import pyogrio
import pytest
import rasterio

from crispseg.errors import UserError
from crispseg.geo.vectorize import vectorize_map
from crispseg.view.features import Features
from crispseg.view.rasters import Raster
from crispseg.view.scene import Files, Scene
from crispseg.view.space import Box
from tests.geo.rasters import UTM, write_raster

WORLD = Box(-180, -85, 180, 85)


@pytest.mark.parametrize("ring", [[[0, 0], [1e300, 0], [1e300, 1e300], [0, 0]], [[0, 0], [0, 1]], [[1, 1]]])
def test_shapes_that_cannot_be_drawn(ring, tmp_path):
    reference = Raster(write_raster(tmp_path / "map.tif", np.zeros((16, 16), np.uint8), **UTM))
    feature = {"type": "Feature", "properties": {}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
    crs = {"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::32633"}}
    path = tmp_path / "p.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "crs": crs, "features": [feature]}))
    try:
        shown = Features(str(path), reference).inside(WORLD, 12)
    except UserError as error:
        assert "cannot be read as polygons" in str(error)
    else:
        assert shown["features"] == [] or len(shown["features"]) == 1


def test_a_file_that_is_no_polygons(tmp_path):
    reference = Raster(write_raster(tmp_path / "map.tif", np.zeros((16, 16), np.uint8), **UTM))
    (tmp_path / "p.gpkg").write_bytes(b"SQLite format 3\0" + b"\xa4" * 200)
    with pytest.raises(UserError, match="cannot be read as polygons"):
        Features(str(tmp_path / "p.gpkg"), reference)


def test_geoparquet_is_told_of_where_gdal_cannot_read_it(tmp_path):
    """The file of crisp vectorize: "libduckdb.so: cannot open shared object file"."""
    if "Parquet" in pyogrio.list_drivers():
        pytest.skip("this GDAL reads it")
    reference = Raster(write_raster(tmp_path / "map.tif", np.zeros((16, 16), np.uint8), **UTM))
    (tmp_path / "map.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(UserError, match="map.parquet is GeoParquet, which GDAL cannot read here; give a .gpkg"):
        Features(str(tmp_path / "map.parquet"), reference)


def test_a_shape_that_reaches_beyond_the_world_is_left_out(tmp_path):
    """GEOS would simplify it for ever."""
    reference = Raster(write_raster(tmp_path / "map.tif", np.zeros((16, 16), np.uint8), **UTM))
    near = [[13.7281, 45.1463], [13.7282, 45.1463], [13.7282, 45.1464], [13.7281, 45.1463]]
    far = [
        [13.728102372, 45.146313368],
        [13.728102472, 1e308],
        [13.72810883, 45.146308939],
        [13.728102372, 45.146313368],
    ]
    features = [
        {"type": "Feature", "properties": {}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
        for ring in (near, far)
    ]
    path = tmp_path / "p.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    assert len(Features(str(path), reference).inside(WORLD, 12)["features"]) == 1


def test_a_map_in_a_reference_system_of_its_own_is_shown_pixel_by_pixel(tmp_path):
    """Photogrammetry without control points writes LOCAL_CS: a traceback of PROJ's."""
    crs = rasterio.CRS.from_wkt('LOCAL_CS["site",UNIT["metre",1],AXIS["x",EAST],AXIS["y",NORTH]]')
    place = {"crs": crs, "transform": UTM["transform"]}
    path = write_raster(tmp_path / "map.tif", np.eye(16, dtype=np.uint8), **place)
    vectorize_map(path, str(tmp_path / "map.gpkg"))
    image = write_raster(tmp_path / "image.tif", np.ones((3, 16, 16), np.uint8), **place)
    scene = Scene(Files((path,), image, polygons=str(tmp_path / "map.gpkg")))
    assert scene.reference.in_pixels and scene.image.raster.box == scene.reference.box
    assert len(Features(str(tmp_path / "map.gpkg"), scene.reference).inside(scene.reference.box, 18)["features"]) > 10
