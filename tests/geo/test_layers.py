"""GeoJSON as RFC 7946 has it, and GeoParquet, each read back by somebody else's code."""

import json

import numpy as np
import pyogrio
import pytest
import rasterio
import shapely
from rasterio.warp import transform

from crispseg.errors import UserError
from crispseg.geo.grid import Grid
from crispseg.geo.lonlat import check_on_earth, footprint, to_lonlat
from crispseg.geo.vectorize import vectorize_map
from tests.geo.rasters import UTM, write_raster
from tests.geo.test_vectorize import on_grid

ISLAND = np.pad(np.ones((10, 10), np.uint8), 10)  # class 1 in class 0, which has a hole


@pytest.fixture
def class_map(tmp_path):
    return write_raster(tmp_path / "map.tif", ISLAND, tags={"CLASSES": '{"0": "sea", "1": "land"}'}, **UTM)


def test_geojson_is_wgs84_and_right_handed(class_map, tmp_path):
    vectorize_map(class_map, str(tmp_path / "map.geojson"))
    collection = json.loads((tmp_path / "map.geojson").read_text(encoding="utf-8"))
    assert "crs" not in collection, "RFC 7946 has no such member"
    west, south, east, north = np.ravel([transform(UTM["crs"], "EPSG:4326", [x], [y]) for x, y in
                                         ((400_000, 5_000_000 - 15), (400_015, 5_000_000))])  # fmt: skip
    for feature in collection["features"]:
        outer, *holes = feature["geometry"]["coordinates"]
        assert shapely.LinearRing(outer).is_ccw and not any(shapely.LinearRing(hole).is_ccw for hole in holes)
        assert all(west - 1e-5 <= x <= east + 1e-5 and south - 1e-5 <= y <= north + 1e-5 for x, y in outer)
    named = {feature["properties"]["class"]: feature for feature in collection["features"]}
    assert set(named) == {"sea", "land"} and len(named["sea"]["geometry"]["coordinates"]) == 2
    assert named["land"]["properties"] == {"class_id": 1, "class": "land", "area": 25.0}


def test_outer_rings_are_anticlockwise_in_pixels_too(tmp_path):
    vectorize_map(write_raster(tmp_path / "map.tif", ISLAND), str(tmp_path / "map.geojson"))
    collection = json.loads((tmp_path / "map.geojson").read_text(encoding="utf-8"))
    for feature in collection["features"]:
        outer, *holes = feature["geometry"]["coordinates"]
        assert shapely.LinearRing(outer).is_ccw and not any(shapely.LinearRing(hole).is_ccw for hole in holes)


def test_gdal_with_its_own_rfc7946_writer_agrees(class_map, tmp_path):
    vectorize_map(class_map, str(tmp_path / "map.geojson"))
    vectorize_map(class_map, str(tmp_path / "map.gpkg"))
    meta, _, geometry, fields = pyogrio.raw.read(tmp_path / "map.gpkg", layer="classes")
    pyogrio.raw.write(
        tmp_path / "gdal.geojson", geometry, fields, meta["fields"], crs=meta["crs"], geometry_type="Polygon",
        driver="GeoJSON", layer_options={"RFC7946": "YES", "COORDINATE_PRECISION": "9"},
    )  # fmt: skip
    ours, gdals = (pyogrio.raw.read(tmp_path / name)[2] for name in ("map.geojson", "gdal.geojson"))
    for one, other in zip(shapely.from_wkb(ours), shapely.from_wkb(gdals), strict=True):
        assert shapely.hausdorff_distance(one, other) < 3e-9
        assert shapely.symmetric_difference(one, other).area < 1e-13


def test_long_sides_stay_where_they_were(tmp_path):
    """A side of 40 km is a curve in longitudes and latitudes."""
    grid = Grid(40_000, 40_000, (1.0, 0, 400_000.0, 0, -1.0, 6_000_000.0), rasterio.CRS.from_epsg(32633).to_wkt())
    square = shapely.box(400_000, 5_960_000, 440_000, 6_000_000)
    back = on_grid(shapely.segmentize(to_lonlat(np.array([square], object), grid), 0.001))[0]
    assert shapely.hausdorff_distance(back.exterior, square.exterior, densify=0.1) < 0.1


def test_across_the_date_line():
    grid = Grid(100, 100, (100.0, 0, 812_000.0, 0, -100.0, 8_000_000.0), rasterio.CRS.from_epsg(32760).to_wkt())
    outline = footprint(grid)
    assert outline.geom_type == "MultiPolygon" and len(outline.geoms) == 2
    west, east = sorted(outline.geoms, key=lambda part: part.bounds[0])
    assert west.bounds[0] == -180 and east.bounds[2] == 180
    assert all(part.bounds[2] - part.bounds[0] < 0.2 for part in outline.geoms)


@pytest.mark.parametrize(
    ("left", "width", "expected"),
    [
        (179.99, 0.02, [(-180, -179.99), (179.99, 180)]),  # Fiji in degrees
        (190, 0.02, [(-170, -169.98)]),  # longitudes from 0 to 360
        (-180, 360, [(-180, 180)]),  # the whole world is no crossing
        (0, 360, [(-180, 0), (0, 180)]),
    ],
)
def test_degrees_across_the_date_line(left, width, expected):
    """They stayed beyond 180 degrees; and a map of the world failed with a TopologyException."""
    grid = Grid(1, 100, (width / 100, 0, left, 0, -1.0, -17.0), rasterio.CRS.from_epsg(4326).to_wkt())
    parts = sorted(shapely.get_parts(footprint(grid)), key=lambda part: part.bounds[0])
    np.testing.assert_allclose([part.bounds[::2] for part in parts], expected, atol=1e-9)


@pytest.mark.parametrize(
    ("crs", "left", "top", "pixel", "holds"),
    [
        (3031, -50_000, 50_000, 1000.0, True),
        (3413, -50_000, 50_000, 1000.0, True),
        (3031, 0, 0, 1000.0, False),  # the pole is its corner
        (3031, -500_000, 50_000, 1000.0, False),
        (3857, -20_000_000, 20_000_000, 400_000.0, False),
        (4087, -20_000_000, 15_000_000, 400_000.0, False),  # its poles are lines
        (4326, -180, 90, 1.8, False),
        (32633, 400_000, 5_000_000, 0.5, False),
    ],
)
def test_outlines_around_a_pole_are_refused(crs, left, top, pixel, holds):
    """They failed with a GEOSException after a night's work."""
    grid = Grid(100, 200, (pixel, 0, left, 0, -pixel, top), rasterio.CRS.from_epsg(crs).to_wkt())
    if holds:
        with pytest.raises(UserError, match="a pole lies in it"):
            check_on_earth(grid)
    else:
        check_on_earth(grid)


def test_geoparquet(class_map, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert vectorize_map(class_map, str(tmp_path / "map.parquet")) == 2
    table = parquet.read_table(tmp_path / "map.parquet")
    about = json.loads(table.schema.metadata[b"geo"])
    column = about["columns"][about["primary_column"]]
    assert (about["version"], column["encoding"], column["geometry_types"]) == ("1.1.0", "WKB", ["Polygon"])
    assert rasterio.CRS.from_user_input(json.dumps(column["crs"])) == rasterio.CRS.from_epsg(32633)
    polygons = shapely.from_wkb(table["geometry"].to_pylist())
    assert shapely.area(polygons).tolist() == table["area"].to_pylist() == [25.0, 200.0]
    assert all(polygon.exterior.is_ccw for polygon in polygons)
    geopandas = pytest.importorskip("geopandas")
    frame = geopandas.read_parquet(tmp_path / "map.parquet")
    assert frame.crs.to_epsg() == 32633 and frame["class"].tolist() == ["land", "sea"]


def test_an_empty_geoparquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = write_raster(tmp_path / "map.tif", np.full((20, 20), 255, np.uint8), nodata=255, **UTM)
    assert vectorize_map(path, str(tmp_path / "map.parquet")) == 0
    table = parquet.read_table(tmp_path / "map.parquet")
    assert not len(table) and b"geo" in table.schema.metadata
