import numpy as np
import pyogrio
import pytest
import rasterio
import rasterio.control
import shapely
from rasterio.enums import ColorInterp

from crispseg.errors import UserError
from crispseg.geo.bands import choose_bands
from crispseg.geo.maps import MapChoice
from crispseg.geo.scenes import Reading, find_scenes, open_scene
from crispseg.predict.batch import predict_scenes
from crispseg.predict.scene import Request
from crispseg.raster.source import Window
from tests.geo.rasters import UTM, random_pixels, write_raster, write_vrt
from tests.predict.standins import StandIn


def test_files_and_folders_are_found_once_and_in_order(tmp_path):
    for name in ("b.tif", "a.PNG", "notes.txt", "a.tfw"):
        (tmp_path / name).touch()
    (tmp_path / "sub.tif").mkdir()
    found = find_scenes([str(tmp_path / "b.tif"), str(tmp_path), "elsewhere.tif"])
    assert [scene.path for scene in found] == [str(tmp_path / "b.tif"), str(tmp_path / "a.PNG"), "elsewhere.tif"]
    with pytest.raises(UserError, match="holds no rasters"):
        find_scenes([str(tmp_path / "sub.tif")])


def test_links_to_nowhere_are_scenes_and_hidden_files_are_none(tmp_path):
    """Scenes on a disk that was not there were left out without a word; macOS leaves `._a.tif` beside `a.tif`."""
    for name in ("a.tif", "._a.tif"):
        (tmp_path / name).touch()
    (tmp_path / "b.tif").symlink_to(tmp_path / "gone" / "b.tif")
    assert [scene.name for scene in find_scenes([str(tmp_path)])] == ["a", "b"]


def test_geopackages_of_shapes_in_a_folder_are_no_scenes(tmp_path):
    """Labels and polygons lie beside orthophotos; a GeoPackage of tiles is a scene, and what is damaged is told of."""
    write_raster(tmp_path / "ortho.tif", random_pixels(3, 20, 30), **UTM)
    with rasterio.open(tmp_path / "ortho.tif") as source:
        profile = {**source.profile, "driver": "GPKG", "tiled": False}
        for key in ("blockxsize", "blockysize", "interleave", "compress"):
            profile.pop(key, None)
        with rasterio.open(tmp_path / "tiles ä#.gpkg", "w", **profile) as package:
            package.write(source.read())
    pyogrio.raw.write(
        tmp_path / "labels.gpkg",
        np.array([shapely.to_wkb(shapely.box(0, 0, 1, 1))], object),
        [np.array([1])],
        ["class"],
        geometry_type="Polygon",
        crs=UTM["crs"],
    )
    (tmp_path / "damaged.gpkg").write_bytes(b"no database")
    found = [scene.path.rpartition("/")[2] for scene in find_scenes([str(tmp_path)])]
    assert found == ["damaged.gpkg", "ortho.tif", "tiles ä#.gpkg"]


@pytest.mark.parametrize(
    ("names", "model_bands", "wanted", "chosen"),
    [
        (["red", "green", "blue"], (), (), (1, 2, 3)),
        (["undefined"] * 3, ("nir", "red", "green"), (), (1, 2, 3)),
        (["green", "red", "nir"], ("NIR", "Red", "Green"), (), (3, 2, 1)),
        (["blue", "green", "red", "nir"], ("nir", "red", "green"), (), (4, 3, 2)),
        (["red", "green", "blue", "alpha"], (), (), (1, 2, 3)),
        (["gray", "undefined", "undefined", "undefined"], (), ("4", "1", "2"), (4, 1, 2)),
        (["blue", "green", "red", "nir"], (), ("NIR", "3", "green"), (4, 3, 2)),
    ],
)
def test_bands_are_chosen_by_number_by_name_or_in_order(names, model_bands, wanted, chosen):
    assert choose_bands("scene", names, StandIn().with_card(bands=model_bands), wanted).bands == chosen


@pytest.mark.parametrize(
    ("names", "wanted", "words"),
    [
        (["undefined"] * 4, (), "takes 3 bands and scene has 4; choose with --bands, e.g. --bands 1,2,3"),
        (["gray"], (), "scene has 1; it needs another model, or a file with 3 bands"),
        (["red", "alpha"], (), "scene has 1 and alpha;"),
        (["red", "green", "blue", "nir", "alpha"], (), "scene has 4 and alpha; choose with --bands"),
        (["red", "green", "blue"], ("1", "2"), "--bands names 2"),
        (["red", "green", "blue"], ("1", "2", "9"), "bands 1 to 3, not 9"),
        (["red", "green", "blue"], ("1", "2", "blu"), "did you mean 'blue'"),
        (["undefined"] * 3, ("undefined",) * 3, "no single band called"),
    ],
)
def test_a_mismatch_is_explained(names, wanted, words):
    with pytest.raises(UserError, match=words):
        choose_bands("scene", names, StandIn(), wanted)


def test_descriptions_name_the_bands(tmp_path):
    pixels = random_pixels(4, 10, 10)
    path = write_raster(tmp_path / "a.tif", pixels, descriptions=["Blue", "Green", "Red", "NIR"], **UTM)
    scene = open_scene(path, StandIn().with_card(bands=("nir", "red", "green")), Reading())
    np.testing.assert_array_equal(scene.source.read(Window(0, 0, 10, 10)).values, pixels[[3, 2, 1]])


@pytest.mark.parametrize("said", ["Band 1", "Band_1", "layer-1", "Channel1"])
def test_descriptions_that_only_count_the_bands_give_way_to_their_colours(tmp_path, said):
    """A file of blue, green, red whose bands are described as Band 1 ... was shown to the model in that order."""
    kinds = [ColorInterp.blue, ColorInterp.green, ColorInterp.red, ColorInterp.undefined]
    counted = [said.replace("1", str(k)) for k in (1, 2, 3, 4)]
    path = write_raster(tmp_path / "a.tif", random_pixels(4, 10, 10), colorinterp=kinds, descriptions=counted, **UTM)
    model = StandIn().with_card(bands=("red", "green", "blue"))
    assert open_scene(path, model, Reading()).bands == (3, 2, 1)
    assert open_scene(path, model, Reading(bands=("green", counted[3], "1"))).bands == (2, 4, 1)


def test_four_bands_with_alpha_and_palettes_suit_a_three_band_model(tmp_path):
    kinds = [ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.alpha]
    pixels = random_pixels(4, 10, 10)
    pixels[3] = 255
    rgba = write_raster(tmp_path / "a.tif", pixels, colorinterp=kinds, **UTM)
    assert open_scene(rgba, StandIn(), Reading()).source.bands == (1, 2, 3)
    index = write_raster(
        tmp_path / "p.tif", random_pixels(1, 10, 10), colormap={1: (1, 2, 3, 255)}, photometric="palette", **UTM
    )
    assert open_scene(index, StandIn(), Reading()).source.expand_palette
    assert not open_scene(index, StandIn(bands=1), Reading()).source.expand_palette


def test_alpha_is_a_mask_for_three_bands_and_a_band_for_four_and_both_are_said(tmp_path):
    kinds = [ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.alpha]
    pixels = random_pixels(4, 10, 10)
    pixels[3] = 255
    pixels[3, :4] = 0
    marked = write_raster(tmp_path / "marked.tif", pixels, colorinterp=kinds, **UTM)
    three = open_scene(marked, StandIn(), Reading())
    assert "bands 1, 2, 3 (red, green, blue), alpha (band 4) says where there is data" in three.told
    assert not three.warnings and not three.source.read(Window(0, 0, 10, 10)).present[:4].any()
    four = open_scene(marked, StandIn(bands=4), Reading())
    assert four.bands == (1, 2, 3, 4) and "calls band 4 alpha; the model takes 4 bands, so" in four.warnings[0]
    assert four.source.read(Window(0, 0, 10, 10)).present.all()
    plain = write_raster(tmp_path / "plain.tif", pixels, photometric="minisblack", **UTM)
    with pytest.raises(UserError, match="takes 3 bands and .* has 4; choose with --bands"):
        open_scene(plain, StandIn(), Reading())


def test_bands_and_scale_are_told_in_one_line(tmp_path):
    path = write_raster(tmp_path / "a.tif", random_pixels(4, 10, 10, np.uint16), photometric="minisblack", **UTM)
    model = StandIn().with_card(bands=("nir", "red", "green"), resolution=1.0)
    told = open_scene(path, model, Reading(bands=("4", "1", "2"), resolution="scene")).told
    assert told == f"{path}: bands 4, 1, 2 as the model's nir, red, green; uint16, pixels of 0.5 m as they are"
    told = open_scene(path, model, Reading(bands=("4", "1", "2"), resolution="model")).told
    assert told.endswith("pixels of 0.5 m resampled to 1 m")
    bare = write_raster(tmp_path / "b.tif", random_pixels(3, 10, 10))
    told = open_scene(bare, StandIn(), Reading()).told
    assert told == f"{bare}: bands 1, 2, 3 (red, green, blue); uint8, pixels of unknown size"


def test_what_only_control_points_place_is_refused_with_the_line_to_run(tmp_path):
    corners = [(0, 0, 10.0, 50.0), (0, 20, 10.1, 50.0), (10, 0, 10.0, 49.9), (10, 20, 10.1, 49.9)]
    points = [rasterio.control.GroundControlPoint(*corner) for corner in corners]
    path = write_raster(tmp_path / "a.tif", random_pixels(3, 10, 20), gcps=points, crs="EPSG:4326")
    rectified = tmp_path / "a_rectified.tif"
    line = f"gdalwarp -order 1 -r bilinear -t_srs EPSG:4326 {path} {rectified}"
    with pytest.raises(UserError, match=f"4 ground control points alone, not by a grid; rectify it first: {line}"):
        open_scene(path, StandIn(), Reading())


def test_without_a_reference_system_there_is_a_warning_or_on_request_an_error(tmp_path):
    path = write_raster(tmp_path / "a.tif", random_pixels(3, 10, 10))
    assert "no coordinate reference system" in open_scene(path, StandIn(), Reading()).warnings[0]
    with pytest.raises(UserError, match="drop --require-crs"):
        open_scene(path, StandIn(), Reading(require_crs=True))


def test_a_reference_system_without_a_place_tells_nothing(tmp_path):
    """Its pixels were taken for squares of one metre at the system's origin."""
    path = write_raster(tmp_path / "a.tif", random_pixels(3, 40, 50), crs="EPSG:32633")
    model = StandIn().with_card(resolutions=(0.1, 0.5))
    scene = open_scene(path, model, Reading())
    assert (scene.grid.height, scene.grid.crs, scene.grid.area_unit) == (40, "", "px")
    assert scene.told.endswith("pixels of unknown size") and not scene.about_image
    without = "names a coordinate reference system but no place in it (no geotransform, no world file)"
    assert scene.about_place[0] == f"{path} {without}: the map will have none"
    assert "does not say how large its pixels are" in scene.about_place[1]
    with pytest.raises(UserError, match="no place in it .*give it one .*drop --require-crs"):
        open_scene(path, model, Reading(require_crs=True))
    with pytest.raises(UserError, match="cannot be resampled: it names .* no place in it.*say it with --pixel-size"):
        open_scene(path, model, Reading(resolution=0.3))
    stated = open_scene(path, model, Reading(pixel_size=1.0))
    assert stated.told.endswith("pixels of 1 m resampled to 0.5 m") and stated.grid.height == 80
    (tmp_path / "a.tfw").write_text("0.5\n0\n0\n-0.5\n400000\n5000000\n")
    assert open_scene(path, model, Reading()).told.endswith("pixels of 0.5 m as they are")


def test_another_resolution(tmp_path):
    path = write_raster(tmp_path / "a.tif", random_pixels(3, 40, 50), **UTM)
    model = StandIn().with_card(resolution=1.0)
    scene = open_scene(path, model, Reading(resolution="scene"))
    assert "pixels of 0.5 m and the model was trained for 0.667 to 1.5 m: expect a poor map" in scene.warnings[0]
    assert (scene.grid.height, scene.grid.width) == (40, 50)
    for resolution in (1.0, "model"):
        scene = open_scene(path, model, Reading(resolution=resolution))
        assert (scene.grid.height, scene.grid.width) == (scene.source.height, scene.source.width) == (20, 25)
        assert scene.grid.transform == (1.0, 0.0, 400_000.0, 0.0, -1.0, 5_000_000.0)
        assert not scene.warnings
    assert open_scene(path, model, Reading(resolution=0.5)).source.bands == (1, 2, 3), "nothing to resample"
    finer = open_scene(path, model, Reading(resolution=0.13))
    corner = rasterio.Affine(*finer.grid.transform) @ (finer.grid.width, finer.grid.height)
    np.testing.assert_allclose(corner, (400_025, 4_999_980))


def test_scenes_are_resampled_to_what_the_model_has_seen(tmp_path):
    path = write_raster(tmp_path / "a.tif", random_pixels(3, 40, 50), **UTM)
    for resolutions, size in (
        ((0.1, 1.0), (40, 50)),  # seen: left as it is
        ((0.4999, 1.0), (40, 50)),
        ((1.0, 2.0), (20, 25)),  # finer than seen: to the finest seen
        ((0.1, 0.25), (80, 100)),  # coarser: to the coarsest seen
        ((0.01, 0.1), (40, 50)),  # coarser by far: nothing to gain
    ):
        scene = open_scene(path, StandIn().with_card(resolutions=resolutions), Reading())
        assert (scene.grid.height, scene.grid.width) == size, resolutions
        assert [w for w in scene.warnings if "resampled to" in w] == list(scene.warnings[: size != (40, 50)])
    assert "expect a poor map" in scene.warnings[0]
    nowhere = write_raster(tmp_path / "b.tif", random_pixels(3, 10, 10))
    assert open_scene(nowhere, StandIn().with_card(resolutions=(1.0, 2.0)), Reading()).grid.height == 10


def test_resolutions_that_cannot_be_are_explained(tmp_path):
    path = write_raster(tmp_path / "a.tif", random_pixels(3, 10, 10))
    with pytest.raises(
        UserError, match="cannot be resampled: it has no coordinate reference system.*say it with --pixel-size"
    ):
        open_scene(path, StandIn(), Reading(resolution=1.0))
    with pytest.raises(UserError, match="does not say its resolution"):
        open_scene(path, StandIn(), Reading(resolution="model"))
    path = write_raster(tmp_path / "b.tif", random_pixels(3, 10, 10), **UTM)
    with pytest.raises(UserError, match="must be positive"):
        open_scene(path, StandIn(), Reading(resolution=-1.0))


def bytes_model():
    return StandIn().with_card(mean=(90.0,) * 3, std=(40.0,) * 3, dtype="uint8")


def test_sixteen_bits_for_an_eight_bit_model_are_refused(tmp_path):
    path = write_raster(tmp_path / "a.tif", random_pixels(3, 100, 100, np.uint16, high=4000), **UTM)
    with pytest.raises(UserError, match=r"a.tif does not suit the model: it has uint16 pixels .* --any-values"):
        open_scene(path, bytes_model(), Reading())
    assert "does not suit the model" in open_scene(path, bytes_model(), Reading(any_values=True)).warnings[0]
    small = write_raster(tmp_path / "b.tif", random_pixels(3, 100, 100, np.uint16, high=255), **UTM)
    assert open_scene(small, bytes_model(), Reading()).warnings == ()


def test_the_type_is_that_of_the_bands_that_are_read(tmp_path):
    """A VRT may hold bands of several types: 12 bits behind a first band of bytes were mapped without a word."""
    mask, deep = random_pixels(1, 20, 20, high=2), random_pixels(3, 20, 20, np.uint16, high=4096)
    write_raster(tmp_path / "mask.tif", mask, **UTM)
    write_raster(tmp_path / "deep.tif", deep, **UTM)
    bands = [("Byte", "mask.tif", 1), *(("UInt16", "deep.tif", k) for k in (1, 2, 3))]
    path = write_vrt(tmp_path / "a.vrt", 20, 20, bands)
    with pytest.raises(UserError, match="it has uint16 pixels"):
        open_scene(path, bytes_model(), Reading(bands=("2", "3", "4")))
    pixels = open_scene(path, bytes_model(), Reading(bands=("1", "3", "4"), any_values=True)).source
    assert pixels.dtype == "uint16"
    np.testing.assert_array_equal(pixels.read(Window(0, 0, 20, 20)).values, np.stack([mask[0], deep[1], deep[2]]))


def test_the_line_that_rectifies_can_be_pasted(tmp_path):
    points = [rasterio.control.GroundControlPoint(*at) for at in ((0, 0, 13, 46), (0, 9, 14, 46), (9, 0, 13, 45))]
    path = write_raster(tmp_path / "my photo.tif", random_pixels(3, 9, 9), gcps=points, crs="EPSG:4326")
    with pytest.raises(UserError, match="'[^']*my photo.tif' '[^']*my photo_rectified.tif'$"):
        open_scene(path, StandIn(), Reading())


def test_a_filler_that_the_file_does_not_name_is_told_and_can_be_named(tmp_path):
    """Black collars of orthophotos were mapped as water, without a word."""
    pixels = random_pixels(3, 200, 200, high=255)
    pixels[:, :, :70] = 0
    path = write_raster(tmp_path / "a.tif", pixels, **UTM)
    (warning,) = open_scene(path, bytes_model(), Reading()).warnings
    assert "is 0 in all bands at 3 of the 9 places looked at" in warning and "--nodata 0 leaves" in warning
    scene = open_scene(path, bytes_model(), Reading(nodata=0.0))
    assert scene.warnings == ()
    present = scene.source.read(Window(0, 0, 200, 200)).present
    assert not present[:, :70].any() and present[:, 70:].all()
    assert open_scene(path, bytes_model(), Reading(nodata=-9999.0)).warnings == (warning,)
    with pytest.raises(UserError, match="nodata is a finite number, not nan: NaN and infinity are no data anyway"):
        Reading(nodata=float("nan"))


def test_a_filler_of_a_palette_image_is_told_by_its_index(tmp_path):
    """The line named the colour: --nodata 0 left out another colour or none, and the collar was mapped all the same."""
    indices = random_pixels(1, 200, 200, high=5)
    indices[:, :, :80] = 7
    colours = {k: (40 * k, 90, 90, 255) for k in range(5)} | {7: (0, 0, 0, 255)}
    path = write_raster(tmp_path / "a.tif", indices, colormap=colours, photometric="palette", **UTM)
    assert "--nodata 7 leaves such pixels out" in open_scene(path, bytes_model(), Reading()).warnings[0]
    scene = open_scene(path, bytes_model(), Reading(nodata=7.0))
    assert scene.warnings == () and not scene.source.read(Window(0, 0, 200, 80)).present.any()


def test_what_is_refused_for_its_filler_alone_says_so(tmp_path):
    pixels = random_pixels(3, 200, 200, np.uint16, high=255)
    pixels[:, :, :70] = 65535
    path = write_raster(tmp_path / "a.tif", pixels, **UTM)
    with pytest.raises(UserError, match=r"does not suit the model: .* --nodata 65535 leaves such pixels out"):
        open_scene(path, bytes_model(), Reading())
    assert open_scene(path, bytes_model(), Reading(nodata=65535.0)).warnings == ()


def test_a_filler_beside_the_one_that_the_file_names(tmp_path):
    pixels = random_pixels(3, 20, 20, high=255)
    pixels[:, :, :5], pixels[:, :, 5:9], pixels[0, :, 9] = 0, 255, 255
    path = write_raster(tmp_path / "a.tif", pixels, nodata=0, **UTM)
    present = open_scene(path, bytes_model(), Reading(nodata=255.0)).source.read(Window(0, 0, 20, 20)).present
    assert not present[:, :9].any() and present[:, 9:].all(), "a pixel has data while a band has"


def test_a_fourth_band_of_shades_is_not_alpha(tmp_path):
    """GDAL takes the fourth of four byte bands for alpha, and near infrared is dark over water: it was cut out."""
    colours = [ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.alpha]
    shades = random_pixels(4, 80, 80, high=255)
    shades[3, :20] = 0
    path = write_raster(tmp_path / "nir.tif", shades, colorinterp=colours, **UTM)
    with pytest.raises(UserError, match="takes 3 bands and .* has 4; choose with --bands, e.g. --bands 1,2,3"):
        open_scene(path, bytes_model(), Reading())
    scene = open_scene(path, bytes_model(), Reading(bands=("1", "2", "3")))
    assert scene.source.read(Window(0, 0, 80, 80)).present.all()
    assert "band 4" in scene.warnings[0] and "marked as alpha but holds shades" in scene.warnings[0]
    opaque = shades.copy()
    opaque[3] = np.where(np.arange(80) < 30, 0, 255)
    path = write_raster(tmp_path / "alpha.tif", opaque, colorinterp=colours, **UTM)
    scene = open_scene(path, bytes_model(), Reading())
    assert scene.warnings == () and not scene.source.read(Window(0, 0, 80, 30)).present.any()


@pytest.mark.parametrize(("dtype", "full"), [("uint8", 1), ("uint8", 254), ("uint16", 4095), ("float32", 255.0)])
def test_any_number_may_stand_for_opaque(tmp_path, dtype, full):
    """Only the largest number of the type did: collars behind an alpha of 0 and 1 were mapped."""
    pixels = random_pixels(4, 80, 80, high=255).astype(dtype)
    pixels[3] = np.where(np.arange(80) < 30, 0, full)
    assert not open_alpha(tmp_path, pixels).read(Window(0, 0, 80, 30)).present.any()


def test_alpha_may_be_packed_with_losses(tmp_path):
    pixels = random_pixels(4, 80, 80, high=255)
    pixels[3] = np.where(np.arange(80) < 30, 0, np.random.default_rng(0).integers(248, 256, (80, 80)))
    assert not open_alpha(tmp_path, pixels).read(Window(0, 0, 80, 30)).present.any()


def open_alpha(folder, pixels):
    kinds = [ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.alpha]
    scene = open_scene(write_raster(folder / "a.tif", pixels, colorinterp=kinds, **UTM), bytes_model(), Reading())
    assert scene.warnings == ()
    return scene.source


@pytest.mark.parametrize("kind", ["", "_confidence", "_boundaries", "_probabilities"])
def test_a_map_of_ours_is_no_scene(tmp_path, kind):
    """The maps of an earlier run, in the folder of the scenes, were mapped as if they were images."""
    write_raster(tmp_path / "a.tif", random_pixels(3, 32, 32), **UTM)
    request = Request(maps=MapChoice(True, True, True), polygons=None)
    assert predict_scenes([str(tmp_path / "a.tif")], str(tmp_path / "a_map.tif"), StandIn(3), request).results
    own = str(tmp_path / f"a_map{kind}.tif")
    with pytest.raises(
        UserError, match=rf"a_map{kind}.tif is a map that crispseg has made with stand_in, not an image"
    ):
        open_scene(own, StandIn(), Reading())
    if kind in ("", "_probabilities"):
        scene = open_scene(own, StandIn(), Reading(any_values=True))
        assert any("the map means little" in line for line in scene.warnings)
