import pytest
import rasterio
from rasterio import warp
from rasterio.crs import CRS

from crispseg.geo.ground import read_ground
from tests.geo.rasters import UTM, random_pixels, write_raster


def in_web_mercator(path, lat, pixel):
    (x,), (y,) = warp.transform(CRS.from_epsg(4326), CRS.from_epsg(3857), [24.9], [lat])
    transform = rasterio.Affine(pixel, 0, x - 20 * pixel, 0, -pixel, y + 20 * pixel)
    return write_raster(path, random_pixels(3, 40, 40), crs="EPSG:3857", transform=transform)


def test_sizes_are_those_on_the_ground(tmp_path):
    """A card made of tiles in Web Mercator says how large things were, not how large the projection draws them."""
    half = in_web_mercator(tmp_path / "a.tif", 60.0, 0.6)
    whole = in_web_mercator(tmp_path / "b.tif", 0.0, 0.6)
    ground = read_ground([half, whole])
    assert ground.sizes == pytest.approx((0.3, 0.6), rel=0.005)
    metric = write_raster(tmp_path / "c.tif", random_pixels(3, 40, 40), **UTM)
    assert read_ground([metric]).middle == 0.5


def test_images_without_a_reference_system_tell_no_size(tmp_path):
    ground = read_ground([write_raster(tmp_path / "a.tif", random_pixels(3, 10, 10))])
    assert ground.sizes is None and ground.middle is None and ground.bands == ("red", "green", "blue")
