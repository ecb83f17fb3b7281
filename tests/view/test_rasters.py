"""Tiles and pixels against the files they come from."""

import io
import json
import math

import numpy as np
import pytest
import rasterio
import rasterio.control
import shapely
from PIL import Image

from crispseg.errors import UserError
from crispseg.geo.vectorize import vectorize_map
from crispseg.view.rasters import Raster
from crispseg.view.scene import Files, Scene, sort_files
from crispseg.view.space import PIXEL, TILE, ZOOM, Box, tile_box, to_degrees, to_metres, zoom_for
from crispseg.view.windows import Marked, windows_file
from tests.geo.rasters import UTM, random_pixels, write_raster
from tests.view.scenes import COLOURS, HEIGHT, WIDTH, make


def shown(picture: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGBA"))


def painted(ids: np.ndarray) -> np.ndarray:
    table = np.zeros((256, 4), np.uint8)
    for k, colour in enumerate(COLOURS):
        table[k] = (*colour, 255)
    return table[ids]


def test_mercator_is_its_own_inverse_and_agrees_with_proj():
    from rasterio.warp import transform

    xs, ys = transform("EPSG:4326", "EPSG:3857", [7.5, -120.0], [51.2, -33.0])
    assert to_metres(7.5, 51.2) == pytest.approx((xs[0], ys[0]), abs=1e-3)
    assert to_degrees(xs[1], ys[1]) == pytest.approx((-120.0, -33.0), abs=1e-9)


def test_zoom_has_pixels_no_larger_than_asked():
    for size in (0.05, 0.6, 10.0, PIXEL):
        side = (tile_box(zoom_for(size), 0, 0).east - tile_box(zoom_for(size), 0, 0).west) / TILE
        assert size / 2 < side <= size * (1 + 1e-6)
    assert zoom_for(PIXEL) == ZOOM


def test_tiles_without_a_reference_system_are_blocks_of_the_file(tmp_path):
    made = make(tmp_path, crs=False)
    scene = Scene(made.files)
    first = 2 ** (ZOOM - 1)  # the tile whose corner is at 0, 0
    padded = np.full((2 * TILE, 2 * TILE), 255, np.uint8)
    padded[:HEIGHT, :WIDTH] = made.classes
    for down, across in np.ndindex(2, 2):
        tile = shown(scene.tile("a", ZOOM, first + across, first + down, frozenset()))
        block = painted(padded[down * TILE : (down + 1) * TILE, across * TILE : (across + 1) * TILE])
        opaque = block[..., 3] > 0
        assert np.array_equal(tile[..., 3], block[..., 3])
        assert np.array_equal(tile[opaque], block[opaque])
    assert not shown(scene.tile("a", ZOOM, first - 1, first, frozenset()))[..., 3].any()


def test_a_tile_shows_the_class_under_each_of_its_pixels(tmp_path):
    """Every pixel of a warped tile, looked up by its own coordinates."""
    made = make(tmp_path)
    scene = Scene(made.files)
    raster = scene.reference
    z = raster.zoom + 1
    x, y = _tile_over(raster, z, WIDTH / 2, HEIGHT / 2)
    tile = shown(scene.tile("a", z, x, y, frozenset()))
    box = tile_box(z, x, y)
    wrong = 0
    for row in range(0, TILE, 10):
        for column in range(0, TILE, 10):
            mx = box.west + (column + 0.5) * (box.east - box.west) / TILE
            my = box.north - (row + 0.5) * (box.north - box.south) / TILE
            c, r = raster.place(*to_degrees(mx, my))
            expected = (*COLOURS[made.classes[math.floor(r), math.floor(c)]], 255)
            wrong += tuple(tile[row, column]) != expected
    # GDAL warps with an error of up to an eighth of a pixel, so a few samples fall on the neighbour
    assert wrong <= 0.03 * 52**2


def _tile_over(raster, z, column, row):
    mx, my = to_metres(*raster.to_degrees([(column, row)])[0])
    side = tile_box(z, 0, 0).east - tile_box(z, 0, 0).west
    return int((mx - tile_box(0, 0, 0).west) // side), int((tile_box(0, 0, 0).north - my) // side)


def test_switched_off_classes_are_transparent(tmp_path):
    made = make(tmp_path, crs=False)
    scene = Scene(made.files)
    first = 2 ** (ZOOM - 1)
    tile = shown(scene.tile("a", ZOOM, first, first, frozenset({1})))
    assert np.array_equal(tile[..., 3] == 255, np.isin(made.classes[:TILE, :TILE], (0, 2)))


def test_errors_and_differences_are_where_the_maps_differ(tmp_path):
    made = make(tmp_path, crs=False)
    maps, image = sort_files(made.files.maps[0], [str(tmp_path / "other.tif"), made.files.image])
    assert len(maps) == 2 and image == made.files.image
    scene = Scene(Files(maps, image, truth=made.files.truth))
    first = 2 ** (ZOOM - 1)
    part = (slice(TILE), slice(TILE))
    for layer, other in (("errors", made.truth), ("difference", made.other)):
        tile = shown(scene.tile(layer, ZOOM, first, first, frozenset()))
        a, b = made.classes[part], other[part]
        assert np.array_equal(tile[..., 3] == 255, (a != b) & (a != 255) & (b != 255))


def test_labels_may_be_given_in_the_maps_colours(tmp_path):
    made = make(tmp_path, crs=False)
    coloured = np.moveaxis(painted(made.truth)[..., :3], -1, 0)
    path = write_raster(tmp_path / "colours.png", coloured, driver="PNG")
    scene = Scene(Files(made.files.maps, truth=path))
    first = 2 ** (ZOOM - 1)
    assert np.array_equal(scene.classes["truth"].tile(ZOOM, first, first), made.truth[:TILE, :TILE])


def test_point_tells_class_confidence_and_place(tmp_path):
    made = make(tmp_path)
    scene = Scene(made.files)
    row, column = 155, 233
    answer = scene.point(*scene.reference.to_degrees([(column + 0.5, row + 0.5)])[0])
    assert (answer["row"], answer["column"], answer["crs"]) == (row, column, "EPSG:32633")
    assert answer["classes"]["a"] == scene.legend.names[made.classes[row, column]]
    assert answer["classes"]["truth"] == scene.legend.names[made.truth[row, column]]
    assert answer["confidence"] == pytest.approx(made.confidence[row, column] / 254)
    assert answer["values"] == made.image[:, row, column].tolist()
    assert (answer["x"], answer["y"]) == pytest.approx((400_000 + 0.5 * 233.5, 5_000_000 - 0.5 * 155.5), abs=1e-6)
    assert scene.point(0, 0) == {"inside": False}
    assert scene.point(-75, 0) == {"inside": False}, "no place of the map's reference system"
    assert scene.classes["a"].raster.pixel(-75, 0) is None
    with pytest.raises(UserError, match="outside the world"):
        windows_file(scene, [Marked(-75, 0, 16, 45)])


def test_maps_with_other_numbers_are_matched_by_name(tmp_path):
    one = make(tmp_path / "one" if (tmp_path / "one").mkdir() is None else tmp_path, crs=False, names=("x", "y", "z"))
    two = make(tmp_path / "two" if (tmp_path / "two").mkdir() is None else tmp_path, crs=False, names=("y", "z", "w"))
    scene = Scene(Files((one.files.maps[0], two.files.maps[0])))
    assert scene.legend.names == ["x", "y", "z", "w"]
    known = two.classes != 255
    assert np.array_equal(scene.classes["b"].numbers(two.classes[None])[known], two.classes[known] + 1)


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_images_of_any_numbers_are_stretched(tmp_path, dtype):
    made = make(tmp_path)
    pixels = random_pixels(1, HEIGHT, WIDTH, dtype, high=4000)
    pixels[0, :50] = np.nan if dtype == "float32" else 0
    path = write_raster(tmp_path / "deep.tif", pixels, **UTM)
    scene = Scene(Files(made.files.maps, path))
    x, y = _tile_over(scene.reference, scene.reference.zoom, WIDTH / 2, HEIGHT / 2)
    tile = shown(scene.tile("image", scene.reference.zoom, x, y, frozenset()))
    assert tile[..., :3].std() > 20


def test_complex_numbers_are_no_picture(tmp_path):
    """They opened, and every tile was an error of the server."""
    made = make(tmp_path)
    radar = write_raster(tmp_path / "slc.tif", made.image[0].astype(np.complex64), **UTM)
    with pytest.raises(UserError, match="slc.tif holds complex numbers"):
        Scene(Files(made.files.maps, radar))


def test_an_image_without_a_reference_system_lies_where_the_map_lies(tmp_path):
    made = make(tmp_path)
    bare = write_raster(tmp_path / "bare.png", made.image, driver="PNG")
    scene = Scene(Files(made.files.maps, bare))
    assert scene.image.raster.box == scene.reference.box
    placed = Scene(made.files)
    z = scene.reference.zoom
    x, y = _tile_over(scene.reference, z, 200, 150)
    assert np.array_equal(
        shown(scene.tile("image", z, x, y, frozenset())), shown(placed.tile("image", z, x, y, frozenset()))
    )


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    made = make(tmp_path)
    small = write_raster(tmp_path / "small.png", made.image[:, :50], driver="PNG")
    with pytest.raises(UserError, match="840 x 50 px and .*840 x 600 px"):
        Scene(Files(made.files.maps, small))
    far = {**UTM, "transform": rasterio.Affine(0.5, 0, 800_000, 0, -0.5, 5_000_000)}
    with pytest.raises(UserError, match="no ground in common"):
        Scene(Files(made.files.maps, write_raster(tmp_path / "far.tif", made.image, **far)))
    with pytest.raises(UserError, match="is no class map: it has 3 bands"):
        Scene(Files((made.files.image,)))
    with pytest.raises(UserError, match="there is no file"):
        Raster(str(tmp_path / "none.tif"))


def test_lines_for_the_shell_can_be_pasted(tmp_path):
    path = write_raster(tmp_path / "a b.tif", np.zeros((2, 8193), np.uint8))
    assert Raster(path).notes[0].endswith(f"-of COG '{path}' '{tmp_path / 'a b_cog.tif'}'")
    points = [rasterio.control.GroundControlPoint(k % 2 * 9, k // 2 * 9, k % 2, k // 2) for k in range(4)]
    placed = write_raster(tmp_path / "c d.tif", np.zeros((9, 9), np.uint8), gcps=points, crs="EPSG:4326")
    with pytest.raises(UserError, match=f"gdalwarp '{placed}' out.tif"):
        Raster(placed)


def test_a_rotated_map_is_shown_where_it_lies(tmp_path):
    turned = {**UTM, "transform": UTM["transform"] * rasterio.Affine.rotation(30)}
    ids = np.zeros((200, 200), np.uint8)
    ids[:100] = 1
    scene = Scene(Files((write_raster(tmp_path / "turned.tif", ids, **turned),)))
    for place in ((50.5, 50.5), (50.5, 150.5)):
        answer = scene.point(*scene.reference.to_degrees([place])[0])
        assert answer["classes"]["a"] == f"class {ids[int(place[1]), int(place[0])]}"
    x, y = _tile_over(scene.reference, scene.reference.zoom, 100, 100)
    assert shown(scene.tile("a", scene.reference.zoom, x, y, frozenset()))[..., 3].any()


@pytest.mark.parametrize(
    ("code", "left", "pixel"),
    [(32601, 180_280, 2), (4326, 179.999, 2e-5), (4326, -180.001, 2e-5), (4326, 250, 2e-5), (3832, 3_339_500, 2)],
)
def test_a_map_across_the_date_line_is_shown_in_one_piece(tmp_path, code, left, pixel):
    """It opened as two specks at the edges of the world, and what lay beyond 180 degrees not at all."""
    top = -17 if code == 4326 else -1_882_000
    place = {"crs": f"EPSG:{code}", "transform": rasterio.Affine(pixel, 0, left, 0, -pixel, top)}
    ids = np.random.default_rng(0).integers(0, 3, (20, 30)).astype(np.uint8).repeat(10, 0).repeat(10, 1)
    map_file = write_raster(tmp_path / "map.tif", ids, nodata=255, **place)
    vectorize_map(map_file, str(tmp_path / "map.gpkg"))
    vectorize_map(map_file, str(tmp_path / "map.geojson"))
    scenes = [Scene(Files((map_file,), polygons=str(tmp_path / f"map.{ending}"))) for ending in ("gpkg", "geojson")]
    scene, raster = scenes[0], scenes[0].reference
    box = raster.box
    assert 0 < box.east - box.west < 0.01 and box.west >= -180 and box.east <= 180
    oracle = pytest.importorskip("pyproj").Transformer.from_crs(code, "OGC:CRS84", always_xy=True)
    x, y = _tile_over(raster, raster.zoom, 150, 100)
    tile, ground = scene.classes["a"].tile(raster.zoom, x, y), tile_box(raster.zoom, x, y)
    side, compared = (ground.east - ground.west) / TILE, 0
    for row, column in np.ndindex(20, 30):
        longitude, latitude = oracle.transform(*raster.grid.ground(10 * column + 5.5, 10 * row + 5.5))
        on_page = (longitude - raster.turn + 180) % 360 - 180
        assert scene.point(on_page, latitude)["classes"]["a"] == f"class {ids[10 * row + 5, 10 * column + 5]}"
        mx, my = to_metres(on_page, latitude)
        across, down = int((mx - ground.west) / side), int((ground.north - my) / side)
        if 0 <= across < TILE and 0 <= down < TILE:
            compared += 1
            assert tile[down, across] == ids[10 * row + 5, 10 * column + 5]
    assert compared > 50
    for each in scenes:
        drawn = each.features.inside(box, 22)["features"]
        shapes = shapely.from_geojson([json.dumps(feature["geometry"]) for feature in drawn])
        assert shapely.union_all(shapes).bounds == pytest.approx(box, abs=1e-6)


def test_maps_of_the_whole_world_are_not_turned(tmp_path):
    """Those of grid points reach half a pixel beyond it."""
    for left, expected in ((-180.0, 0), (-180.05, 0), (0.0, 180)):
        place = {"crs": "EPSG:4326", "transform": rasterio.Affine(0.1, 0, left, 0, -0.1, 90.0)}
        assert Raster(write_raster(tmp_path / "map.tif", np.zeros((1800, 3600), np.uint8), **place)).turn == expected


def test_a_map_that_holds_a_pole_is_shown_pixel_by_pixel(tmp_path):
    """Web Mercator ends before it: a traceback of a division by zero."""
    place = {"crs": "EPSG:3413", "transform": rasterio.Affine(1, 0, -10, 0, -1, 10)}
    scene = Scene(Files((write_raster(tmp_path / "map.tif", np.eye(20, dtype=np.uint8), **place),)))
    assert scene.describe()["pixels"]
    assert scene.point(*scene.reference.to_degrees([(3.5, 3.5)])[0])["classes"] == {"a": "class 1"}


def test_legend_counts_every_pixel(tmp_path):
    made = make(tmp_path)
    state = Scene(made.files).counting.wait()
    pixels = np.bincount(made.classes.ravel(), minlength=256)[:3]
    assert [row["pixels"] for row in state["maps"]["a"]] == pixels.tolist()
    assert [row["area"] for row in state["maps"]["a"]] == pytest.approx(pixels * 0.25)
    assert [row["share"] for row in state["maps"]["a"]] == pytest.approx(pixels / pixels.sum())
    assert state["unit"] == "m2"


def test_what_a_map_masks_is_neither_counted_nor_named(tmp_path):
    """A mask inside the file, as GDAL writes it: the tiles heeded it, the legend and clicks did not."""
    ids = np.repeat(np.arange(3, dtype=np.uint8), 20)[None].repeat(50, 0)
    mask = np.zeros(ids.shape, np.uint8)
    mask[:20] = 255
    scene = Scene(Files((write_raster(tmp_path / "map.tif", ids, mask=mask, **UTM),)))
    assert [row["pixels"] for row in scene.counting.wait()["maps"]["a"]] == np.bincount(ids[mask > 0]).tolist()
    shown_at = {row: scene.point(*scene.reference.to_degrees([(30.5, row + 0.5)])[0])["classes"] for row in (19, 20)}
    assert shown_at == {19: {"a": "class 1"}, 20: {"a": "no data"}}


def test_polygons_in_sight_and_no_others(tmp_path):
    """The regions of the map that a box meets, against shapely; a text that points elsewhere is refused."""
    import shapely

    from crispseg.geo.vectorize import vectorize_map

    for crs in (True, False):
        folder = tmp_path / str(crs)
        folder.mkdir()
        made = make(folder, crs=crs)
        vectorize_map(made.files.maps[0], str(folder / "map.gpkg"), min_area=4)
        scene = Scene(Files(made.files.maps, polygons=str(folder / "map.gpkg")))
        whole = scene.features.inside(scene.reference.box, 22)
        shapes = [shapely.from_geojson(json.dumps(feature["geometry"])) for feature in whole["features"]]
        west, south, east, north = scene.reference.box
        part = Box(west, (south + north) / 2, (west + east) / 2, north)
        found = scene.features.inside(part, 22)["features"]
        met = sum(shape.intersects(shapely.box(*part)) for shape in shapes)
        assert 0 < met <= len(found) < 0.5 * len(shapes)  # some more: OGR looks at their boxes
        assert {f["properties"]["class"] for f in found} <= set(scene.legend.names)
    (tmp_path / "trick.gpkg").write_text('<OGRVRTDataSource><OGRVRTLayer name="x"/></OGRVRTDataSource>')
    with pytest.raises(UserError):
        Scene(Files(made.files.maps, polygons=str(tmp_path / "trick.gpkg")))
