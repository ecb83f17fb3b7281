import itertools

import numpy as np
import pytest
import rasterio
from rasterio import warp
from rasterio.crs import CRS

from crispseg.errors import UserError
from crispseg.geo.areas import ClassAreas
from crispseg.geo.grid import Grid


def grid(epsg, transform, height=4, width=3):
    return Grid(height, width, tuple(transform)[:6], CRS.from_epsg(epsg).to_wkt() if epsg else "")


def geodesic_area(transform, row, col):
    """Of one pixel, by pyproj, with its sides cut into short pieces along the straight lines in degrees."""
    geod = pytest.importorskip("pyproj").Geod(ellps="WGS84")
    corners = [(col, row), (col + 1, row), (col + 1, row + 1), (col, row + 1), (col, row)]
    points = [
        transform @ (a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t)
        for a, b in itertools.pairwise(corners)
        for t in np.linspace(0, 1, 50, endpoint=False)
    ]
    return abs(geod.polygon_area_perimeter(*np.transpose(points))[0])


@pytest.mark.parametrize("top", [0.1, 52.5, 89.0, -33.0])
def test_geographic_pixels_have_their_area_on_the_ellipsoid(top):
    transform = rasterio.Affine(0.2, 0, 10, 0, -0.2, top)
    areas = grid(4326, transform).pixel_areas(0, 4)
    assert areas.shape == (4, 1)
    expected = [geodesic_area(transform, row, 0) for row in range(4)]
    np.testing.assert_allclose(areas[:, 0], expected, rtol=1e-5)


def test_turned_geographic_pixels():
    transform = rasterio.Affine.translation(10, 50) @ rasterio.Affine.rotation(30) @ rasterio.Affine.scale(0.01, -0.02)
    areas = grid(4326, transform).pixel_areas(1, 2)
    assert areas.shape == (2, 3)
    expected = [[geodesic_area(transform, row, col) for col in range(3)] for row in (1, 2)]
    np.testing.assert_allclose(areas, expected, rtol=1e-5)


def test_the_whole_earth():
    everything = grid(4326, rasterio.Affine(1, 0, -180, 0, -1, 90), 180, 360)
    total = everything.pixel_areas(0, 180).sum() * 360
    np.testing.assert_allclose(total, 510_065_621.724e6, rtol=1e-9)  # the WGS 84 ellipsoid's surface


def test_degrees_and_grads_agree():
    degrees = grid(4807, rasterio.Affine(0.01, 0, 0, 0, -0.01, 50))  # in grads, on another ellipsoid
    per_grad = grid(4326, rasterio.Affine(0.009, 0, 0, 0, -0.009, 45))
    np.testing.assert_allclose(degrees.pixel_areas(0, 4), per_grad.pixel_areas(0, 4), rtol=1e-3)
    np.testing.assert_allclose(degrees.pixel_size(), per_grad.pixel_size(), rtol=1e-3)


def test_metric_turned_and_foot_grids():
    assert grid(32633, rasterio.Affine(0.5, 0, 0, 0, -0.5, 0)).pixel_areas(7, 2).item() == 0.25
    turned = rasterio.Affine.rotation(20) @ rasterio.Affine.scale(2, -3)
    np.testing.assert_allclose(grid(32633, turned).pixel_areas(0, 1), [[6.0]])
    np.testing.assert_allclose(grid(32633, turned).pixel_size(), (2, 3))
    feet = grid(2263, rasterio.Affine(2, 0, 0, 0, -2, 0))
    np.testing.assert_allclose(feet.pixel_areas(0, 1), [[(2 * 1200 / 3937) ** 2]])
    assert feet.area_unit == "m2"


def test_pixel_size_in_degrees_is_that_of_the_middle():
    geod = pytest.importorskip("pyproj").Geod(ellps="WGS84")
    here = grid(4326, rasterio.Affine(0.001, 0, 10, 0, -0.001, 60), 2000, 1000)
    east = geod.inv(10, 59, 10.001, 59)[2]
    north = geod.inv(10, 58.9995, 10, 59.0005)[2]
    np.testing.assert_allclose(here.pixel_size(), (east, north), rtol=1e-4)


def centred(epsg, lon, lat, pixel, height=40, width=60, turn=0.0):
    """A grid whose middle lies there, with pixels of so many units."""
    (x,), (y,) = warp.transform(CRS.from_epsg(4326), CRS.from_epsg(epsg), [lon], [lat])
    around = rasterio.Affine.rotation(turn) @ rasterio.Affine.scale(pixel, -pixel)
    return grid(
        epsg,
        rasterio.Affine.translation(x, y) @ around @ rasterio.Affine.translation(-width / 2, -height / 2),
        height,
        width,
    )


def geodesic_size(here):
    """Of the middle pixel, by pyproj: along columns and along rows."""
    pyproj = pytest.importorskip("pyproj")
    to_degrees = pyproj.Transformer.from_crs(here.crs, 4326, always_xy=True)
    column, row = here.width / 2, here.height / 2
    sizes = []
    for x, y in ((0.5, 0), (0, 0.5)):
        ends = [to_degrees.transform(*here.ground(column + side * x, row + side * y)) for side in (-1, 1)]
        sizes.append(pyproj.Geod(ellps="WGS84").inv(*ends[0], *ends[1])[2])
    return sizes


@pytest.mark.parametrize(
    ("epsg", "lon", "lat", "pixel"),
    [
        (3857, 24.9, 60.0, 1.9),
        (3857, -70.0, -45.0, 0.3),
        (3857, 179.9999, 70.0, 1.0),  # at the date line
        (3395, 10.0, 60.0, 2.0),  # Mercator on the ellipsoid
        (3995, 0.0, 90.0, 5.0),  # at the pole
        (3034, 15.0, 50.0, 10.0),
    ],
)
@pytest.mark.parametrize("turn", [0.0, 30.0])
def test_far_from_scale_pixels_are_measured_on_the_ground(epsg, lon, lat, pixel, turn):
    here = centred(epsg, lon, lat, pixel, turn=turn)
    np.testing.assert_allclose(here.pixel_size(), geodesic_size(here), rtol=1e-5)
    assert abs(here.pixel_size()[0] / pixel - 1) > 0.01
    area = here.sum_areas(np.zeros((40, 60), np.int64), 1, 0).item()
    np.testing.assert_allclose(area, np.prod(geodesic_size(here)) * 40 * 60, rtol=1e-4)


@pytest.mark.parametrize("turn", [0.0, 70.0])
def test_areas_follow_the_scale_over_the_whole_scene(turn):
    """Scenes so large that it changes within them, along rows and columns, beside each pixel measured alone."""
    here = centred(3995, 30.0, 50.0, 20_000.0, 40, 70, turn)
    areas = np.broadcast_to(here.pixel_areas(5, 30), (30, 70))
    for row, column in ((5, 0), (5, 69), (34, 0), (34, 69), (20, 35)):
        place = rasterio.Affine(*here.transform) @ rasterio.Affine.translation(column, row)
        alone = grid(3995, place, 1, 1).pixel_areas(0, 1).item()
        np.testing.assert_allclose(areas[row - 5, column], alone, rtol=2e-3)
    assert areas.max() > 1.1 * areas.min()


def test_web_mercator_at_sixty_degrees_by_hand():
    """Along the parallel, the radius a / sqrt(1 - e2 sin2) times cos against the sphere's a."""
    latitude, e2 = np.radians(60), 0.00669437999014
    w = 1 - e2 * np.sin(latitude) ** 2
    by_hand = 1.9 * np.cos(latitude) / np.sqrt(w), 1.9 * np.cos(latitude) * (1 - e2) / w**1.5
    np.testing.assert_allclose(centred(3857, 24.9, 60, 1.9).pixel_size(), by_hand, rtol=1e-6)


def test_a_world_in_web_mercator_has_the_area_up_to_its_edges():
    half = 20037508.342789244
    world = grid(3857, rasterio.Affine(half / 256, 0, -half, 0, -half / 256, half), 512, 512)
    total = sum(world.sum_areas(np.zeros((128, 512), np.int64), 1, top).item() for top in range(0, 512, 128))
    edge = grid(4326, rasterio.Affine(360, 0, -180, 0, -170.10225756, 85.05112878), 1, 1)
    np.testing.assert_allclose(total, edge.pixel_areas(0, 1).item(), rtol=1e-3)


@pytest.mark.parametrize("epsg", [32635, 3067, 3035, 27700, 2154])
def test_where_a_survey_measures_its_units_are_the_grounds(epsg):
    lon, lat = {27700: (-1.5, 53.0), 2154: (3.0, 46.0)}.get(epsg, (24.9, 60.0))
    here = centred(epsg, lon, lat, 0.3)
    assert here.pixel_size() == pytest.approx((0.3, 0.3), rel=1e-12)
    assert here.pixel_areas(0, 5).shape == (1, 1) and here.pixel_areas(0, 5).item() == pytest.approx(0.09)
    np.testing.assert_allclose(here.pixel_size(), geodesic_size(here), rtol=0.01)


def test_places_outside_a_projection_leave_its_units():
    nowhere = grid(32633, rasterio.Affine(1, 0, 9e7, 0, -1, 0))
    assert nowhere.pixel_size() == (1.0, 1.0) and nowhere.pixel_areas(0, 2).item() == 1.0


def test_a_sphere_has_the_area_of_a_sphere():
    moon = CRS.from_proj4("+proj=longlat +R=1737400 +no_defs").to_wkt()
    total = Grid(90, 180, (2, 0, -180, 0, -2, 90), moon).pixel_areas(0, 90).sum() * 180
    np.testing.assert_allclose(total, 4 * np.pi * 1737400**2, rtol=1e-9)


def test_pixels_are_found_by_their_place():
    turned = rasterio.Affine.translation(10, 50) @ rasterio.Affine.rotation(30) @ rasterio.Affine.scale(0.3, -0.7)
    columns, rows = np.array([0, 5.5, -3]), np.array([0, 1, 2.25])
    there = grid(32633, turned @ rasterio.Affine.shear(10, 0))
    np.testing.assert_allclose(there.pixel(*there.ground(columns, rows)), (columns, rows), atol=1e-9)


def test_resampling_keeps_the_ground():
    plain = Grid(60, 100, stated=(2.0, 3.0))
    finer = plain.resampled(0.5)
    assert (finer.height, finer.width, finer.stated) == (360, 400, (0.5, 0.5))
    turned = rasterio.Affine(0.5, 0.2, 400_000, 0.3, -0.4, 5_000_000)
    coarser = grid(32633, turned, 70, 90).resampled(1.0)
    corners = np.array([0, 1]), np.array([0, 1])
    there = coarser.ground(corners[0] * coarser.width, corners[1] * coarser.height)
    np.testing.assert_allclose(there, grid(32633, turned).ground(corners[0] * 90, corners[1] * 70))
    assert grid(32633, turned, 1, 1).resampled(50.0).width == 1
    with pytest.raises(
        UserError, match="no coordinate reference system, so the size of its pixels in metres is unknown"
    ):
        grid(0, turned).resampled(1.0)


def test_without_a_reference_system_areas_are_pixels():
    plain = grid(0, rasterio.Affine.identity())
    assert plain.area_unit == "px"
    areas = ClassAreas(plain)
    areas.add(0, np.array([[0, 0, 1], [2, 2, 255]], np.uint8))
    rows = areas.table(("a", "b", "c"))
    assert [row["area"] for row in rows] == [2, 1, 2]
    assert [row["share"] for row in rows] == [0.4, 0.2, 0.4]


@pytest.mark.parametrize(
    "transform", [rasterio.Affine(0.2, 0, 10, 0, -0.2, 50), rasterio.Affine(0.2, 0.1, 10, 0.1, -0.2, 50)]
)
def test_class_areas_are_the_sum_over_their_pixels(transform):
    here = grid(4326, transform, 200, 30)
    classes = np.random.default_rng(0).integers(0, 3, (200, 30)).astype(np.uint8)
    areas = ClassAreas(here)
    areas.add(0, classes[:77])
    areas.add(77, classes[77:])
    pixel = np.broadcast_to(here.pixel_areas(0, 200), classes.shape)
    expected = [pixel[classes == k].sum() for k in range(3)]
    np.testing.assert_allclose([row["area"] for row in areas.table(("a", "b", "c"))], expected)
