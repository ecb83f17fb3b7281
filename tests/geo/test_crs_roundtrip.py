"""Reference systems that a format drops or changes, found by writing and reading it, against where GDAL places them."""

import numpy as np
import pyogrio
import pytest
import rasterio
from rasterio.crs import CRS
from rasterio.warp import transform

from crispseg.errors import UserError
from crispseg.geo.crs_roundtrip import check_flatgeobuf_keeps, check_geotiff_keeps
from crispseg.geo.grid import Grid
from crispseg.geo.vectorize import vectorize_map
from crispseg.predict.bands import Pace
from crispseg.predict.batch import predict_scenes
from crispseg.predict.scene import Request
from crispseg.predict.work import Settings
from tests.geo.rasters import UTM, random_pixels, write_raster
from tests.predict.standins import StandIn

SMALL = Request(Settings(32, 8), pace=Pace(2, 2))
FEET = CRS.from_string("+proj=utm +zone=17 +datum=NAD83 +units=us-ft +no_defs")
ROTATED = CRS.from_string("+proj=ob_tran +o_proj=longlat +o_lon_p=0 +o_lat_p=39.25 +lon_0=18 +datum=WGS84 +no_defs")
SHIFTED = CRS.from_string("+proj=longlat +lon_0=10 +datum=WGS84 +no_defs")  # a GeoTIFF says nothing of the 10 degrees


def grid_in(crs, x=1e5, y=2e5):
    return Grid(2, 2, (1.0, 0.0, x, 0.0, -1.0, y), crs.to_wkt())


def test_utm_in_feet_is_kept_by_geopackage_and_refused_for_flatgeobuf(tmp_path):
    """FlatGeobuf took it for UTM in metres, three times as far away."""
    place = rasterio.Affine(1, 0, 1_640_000, 0, -1, 14_000_000)
    path = write_raster(tmp_path / "map.tif", random_pixels(1, 8, 9, high=3)[0], crs=FEET, transform=place, nodata=255)
    with pytest.raises(UserError, match="would become another in a FlatGeobuf; write polygons to .gpkg"):
        vectorize_map(path, str(tmp_path / "map.fgb"))
    assert not (tmp_path / "map.fgb").exists()
    vectorize_map(path, str(tmp_path / "map.gpkg"))
    about = pyogrio.read_info(tmp_path / "map.gpkg", layer="classes", force_total_bounds=True)
    west, _, _, north = about["total_bounds"]
    found = transform(CRS.from_user_input(about["crs"]), CRS.from_epsg(4326), [west], [north])
    np.testing.assert_allclose(found, transform(FEET, CRS.from_epsg(4326), [place.c], [place.f]), atol=1e-9)


def test_a_scene_whose_map_would_lie_nowhere_is_refused_before_the_first_tile(tmp_path):
    """GDAL keeps its reference system in notes beside the file, and those of a map are ours."""
    place = rasterio.Affine(1e-5, 0, 0.1, 0, -1e-5, 1.2)
    scene = write_raster(tmp_path / "scene.tif", random_pixels(3, 40, 50), crs=ROTATED, transform=place)
    with rasterio.open(scene) as dataset:
        assert dataset.crs is not None
    ((_, reason),) = predict_scenes([scene], str(tmp_path / "map.tif"), StandIn(), SMALL).failures
    assert "cannot be kept in a GeoTIFF" in reason and "gdalwarp -t_srs EPSG:CODE" in reason
    assert not (tmp_path / "map.tif").exists()


def test_a_system_that_a_geotiff_changes_is_refused(tmp_path):
    grid = grid_in(SHIFTED, 0.1, 1.2)
    with rasterio.open(write_raster(tmp_path / "x.tif", random_pixels(1, 2, 2), **UTM | {"crs": SHIFTED})) as written:
        assert transform(written.crs, "EPSG:3857", [0], [0])[0][0] != transform(SHIFTED, "EPSG:3857", [0], [0])[0][0]
    with pytest.raises(UserError, match="cannot be kept in a GeoTIFF"):
        check_geotiff_keeps(grid)


@pytest.mark.parametrize("code", [4326, 3857, 32633, 2263, 31468, 2053, 5513, 4807, 3413, 7415, 27700])
def test_systems_with_a_code_are_kept(code):
    crs = CRS.from_epsg(code)
    grid = grid_in(crs, 10, 50) if crs.is_geographic else grid_in(crs)
    check_geotiff_keeps(grid)
    check_flatgeobuf_keeps(grid)
