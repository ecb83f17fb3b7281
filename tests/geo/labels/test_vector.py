"""`crisp prepare vector`: what is drawn is what is learnt, pixel by pixel, and mistakes are told in one sentence."""

import json
import warnings

import numpy as np
import pyogrio
import pytest
import rasterio
import shapely
from PIL import Image
from rasterio.warp import transform

from crispseg.cli import main as cli
from crispseg.data import SegmentationDataset, open_folder
from crispseg.data.colours import EXPECTED
from crispseg.data.manifest import read_manifest
from crispseg.errors import UserError
from crispseg.geo.labels.burn import Burner
from crispseg.geo.labels.layers import Shapes
from crispseg.geo.labels.vector import VectorChoice, prepare_vector
from crispseg.geo.reader import RasterSource
from crispseg.geo.style import Style, add_style_to_geopackage
from crispseg.raster.source import Window, read_reflected
from tests.geo.rasters import UTM, random_pixels, read_raster, write_raster

HEIGHT, WIDTH = 130, 170


def on_ground(polygon, affine=UTM["transform"]):
    return shapely.transform(polygon, lambda p: np.array(affine @ p.T).T)


def draw(path, polygons, values, crs=UTM["crs"], affine=UTM["transform"], field="class", **more):
    """Polygons in pixel coordinates, written in any reference system."""
    ground = [None if p is None else on_ground(p, affine) for p in polygons]
    if crs not in (None, UTM["crs"]):
        move = lambda p: np.array(transform(UTM["crs"], crs, p[:, 0], p[:, 1])).T  # noqa: E731
        ground = [shapely.transform(p, move) for p in ground]
    columns = {field: np.array(values, object if any(isinstance(v, str) for v in values) else None), **more}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pyogrio.raw.write(
            path, shapely.to_wkb(np.array(ground, object)), list(columns.values()), list(columns), crs=crs,
            geometry_type="Polygon", layer="drawn", driver="GPKG",
        )  # fmt: skip
    return str(path)


def expected(polygons, ids, background=255):
    """The class of the last polygon that holds a pixel's middle."""
    y, x = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    mask = np.full((HEIGHT, WIDTH), background, np.uint8)
    for polygon, k in zip(polygons, ids, strict=True):
        mask[shapely.contains_xy(polygon, x, y)] = k
    return mask


@pytest.fixture
def ortho(tmp_path):
    return write_raster(tmp_path / "ortho.tif", random_pixels(3, HEIGHT, WIDTH, high=250), **UTM)


SHAPES = [shapely.box(10.2, 20.3, 60.7, 70.1), shapely.Point(120, 60).buffer(33.3), shapely.box(20, 96, 150, 120.4)]
CLASSES = ["roof", "tree", "road"]  # ids by letters: road 0, roof 1, tree 2
IDS = [1, 2, 0]


def prepare(images, labels, out, **choice):
    told = []
    images = [images] if isinstance(images, str) else images
    manifest = prepare_vector(images, VectorChoice(labels, **{"field": "class", **choice}), str(out), told.append)
    return manifest, told


def whole_mask(out, name="ortho"):
    return read_raster(out / "masks" / f"{name}.tif")[0]


def test_masks_hold_what_was_drawn(ortho, tmp_path):
    labels = draw(tmp_path / "labels.gpkg", SHAPES, CLASSES)
    manifest, told = prepare(ortho, labels, tmp_path / "data", chip=0)
    np.testing.assert_array_equal(whole_mask(tmp_path / "data"), expected(SHAPES, IDS))
    np.testing.assert_array_equal(read_raster(tmp_path / "data" / "images" / "ortho.tif"), read_raster(ortho))
    assert not told
    assert (manifest["bands"], manifest["resolution"]) == (["red", "green", "blue"], 0.5)
    assert manifest["sources"] == [{"image": ortho, "crs": "EPSG:32633"}]
    counts = np.bincount(expected(SHAPES, IDS).ravel(), minlength=256)[:3]
    assert manifest["histogram"]["full"] == counts.tolist()


def test_chips_are_the_whole_cut_up_and_training_reads_them(ortho, tmp_path):
    labels = draw(tmp_path / "labels.gpkg", SHAPES, CLASSES)
    manifest, _ = prepare(ortho, labels, tmp_path / "data", chip=60)
    truth, image = expected(SHAPES, IDS), read_raster(ortho)
    seen = np.full_like(truth, 255)
    for entry in manifest["images"]:
        top, left, height, width = entry["window"]
        assert height <= 60 and width <= 60
        where = (slice(top, top + height), slice(left, left + width))
        seen[where] = whole_mask(tmp_path / "data", entry["name"])
        with rasterio.open(tmp_path / "data" / entry["image"]) as chip:
            np.testing.assert_array_equal(chip.read(), image[:, where[0], where[1]])
            assert chip.crs == UTM["crs"] and chip.transform == UTM["transform"] @ rasterio.Affine.translation(
                left, top
            )
    np.testing.assert_array_equal(seen, truth)
    folder = open_folder(tmp_path / "data")
    assert folder.protocol.classes == ("road", "roof", "tree") and folder.protocol.resolution == 0.5
    assert folder.bands == 3 and folder.records("train") and folder.records("val")
    record = folder.records("train")[0]
    np.testing.assert_array_equal(folder.read_mask(record), whole_mask(tmp_path / "data", record.name))


@pytest.mark.parametrize("crs", ["EPSG:4326", "EPSG:3857", "EPSG:25833"])
def test_another_reference_system(ortho, tmp_path, crs):
    labels = draw(tmp_path / "labels.gpkg", SHAPES, CLASSES, crs=crs)
    _, told = prepare(ortho, labels, tmp_path / "data", chip=0)
    differ = whole_mask(tmp_path / "data") != expected(SHAPES, IDS)
    assert differ.sum() <= 3, "rounding may move a pixel whose middle lies on an edge"
    assert told == [f"{labels} is in {crs} and {ortho} in EPSG:32633: polygons are reprojected"]


@pytest.mark.parametrize("name", ["labels.shp", "labels.geojson", "labels.fgb", "labels.kml"])
def test_any_kind_of_file_that_ogr_reads(ortho, tmp_path, name):
    drawn = draw(tmp_path / "drawn.gpkg", SHAPES, CLASSES, crs="EPSG:4326")
    meta, _, geometry, fields = pyogrio.raw.read(drawn)
    field = "Name" if name.endswith("kml") else "class"
    driver = {"driver": "KML"} if name.endswith("kml") else {}
    pyogrio.raw.write(tmp_path / name, geometry, fields, [field], crs=meta["crs"], geometry_type="Polygon", **driver)
    prepare(ortho, str(tmp_path / name), tmp_path / "data", chip=0, field=field)
    assert (whole_mask(tmp_path / "data") != expected(SHAPES, IDS)).sum() <= 3


def test_polygons_that_cannot_be_brought_onto_the_image(tmp_path, capfd):
    """A traceback of PROJ's, after a page of JSON: the image is in a reference system of its own."""
    crs = rasterio.CRS.from_wkt('LOCAL_CS["site",UNIT["metre",1],AXIS["x",EAST],AXIS["y",NORTH]]')
    image = write_raster(tmp_path / "image.tif", random_pixels(3, 64, 64), crs=crs, transform=UTM["transform"])
    labels = draw(tmp_path / "labels.gpkg", [shapely.box(1, 1, 9, 9)], ["a"])
    with pytest.raises(UserError, match=r"is in EPSG:32633, which cannot be brought onto .*image.tif in site; draw"):
        prepare(image, labels, tmp_path / "data")
    assert "ERROR" not in capfd.readouterr().err


def test_a_reference_system_that_the_file_does_not_say(ortho, tmp_path):
    labels = draw(tmp_path / "labels.gpkg", SHAPES, CLASSES, crs=None)
    prepare(ortho, labels, tmp_path / "data", chip=0, labels_crs="EPSG:32633")
    np.testing.assert_array_equal(whole_mask(tmp_path / "data"), expected(SHAPES, IDS))
    with pytest.raises(UserError, match="'EPSG:none' names no coordinate reference system"):
        prepare(ortho, labels, tmp_path / "other", labels_crs="EPSG:none")


def test_a_turned_image(tmp_path):
    turned = UTM["transform"] @ rasterio.Affine.rotation(30)
    image = write_raster(tmp_path / "ortho.tif", random_pixels(3, HEIGHT, WIDTH), crs=UTM["crs"], transform=turned)
    labels = draw(tmp_path / "labels.gpkg", SHAPES, CLASSES, affine=turned)
    prepare(image, labels, tmp_path / "data", chip=0)
    assert (whole_mask(tmp_path / "data") != expected(SHAPES, IDS)).sum() <= 3


def test_faults_are_mended_or_left_out_and_told(ortho, tmp_path):
    bow = shapely.Polygon([(10, 80), (60, 125), (10, 125), (60, 80)])
    flat = shapely.Polygon([(5, 5), (9, 9), (5, 5)])
    shapes = [SHAPES[0], bow, flat, None, shapely.box(70, 10, 90, 20)]
    labels = draw(tmp_path / "labels.gpkg", shapes, ["roof", "road", "roof", "roof", None])
    _, told = prepare(ortho, labels, tmp_path / "data", chip=0)
    good = [SHAPES[0], shapely.make_valid(bow)]
    np.testing.assert_array_equal(whole_mask(tmp_path / "data"), expected(good, [1, 0]))
    assert told == [
        f"{labels}: 1 polygon (feature 2) with invalid rings (they cross or touch themselves), mended",
        f"{labels}: 1 polygon (feature 3) without any area, left out",
        f"{labels}: 1 polygon (feature 5) without a value in the field: what they cover is ignored",
    ]


OVER = [shapely.box(10, 10, 100, 100), shapely.box(50, 50, 160, 120), shapely.box(60, 20, 80, 110)]


@pytest.mark.parametrize(
    ("overlaps", "order"), [("last", [0, 1, 2]), ("first", [2, 1, 0]), ("smallest", [0, 1, 2]), ("level", [1, 2, 0])]
)
def test_which_polygon_lies_on_top(ortho, tmp_path, overlaps, order):
    labels = draw(tmp_path / "labels.gpkg", OVER, CLASSES, level=np.array([9.5, 1.0, 2.0]))
    prepare(ortho, labels, tmp_path / "data", chip=0, overlaps=overlaps)
    truth = expected([OVER[k] for k in order], [IDS[k] for k in order])
    np.testing.assert_array_equal(whole_mask(tmp_path / "data"), truth)


def test_overlap_is_an_error_by_default_and_leaves_nothing(ortho, tmp_path):
    labels = draw(tmp_path / "labels.gpkg", OVER, CLASSES)
    inside = np.stack([expected([shape], [1]) == 1 for shape in OVER]).sum(axis=0) > 1
    row, col = np.argwhere(inside)[0]
    with pytest.raises(UserError, match=f"overlap on {inside.sum()} pixels .* at row {row}, column {col}; mend them"):
        prepare(ortho, labels, tmp_path / "data", chip=50)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["labels.gpkg", "ortho.tif"]
    same = draw(tmp_path / "same.gpkg", OVER, ["roof"] * 3)
    prepare(ortho, same, tmp_path / "data")  # one class over itself is no contradiction


def test_of_polygons_of_one_rank_the_last_lies_on_top():
    """Of many, too: sorting must not mix them."""
    boxes = np.array([shapely.box(0, 0, 9, 9)] * 400, object)
    values, ranks = np.arange(400) // 2 % 3, np.arange(400) % 2.0
    burnt = Burner(Shapes(boxes, np.arange(400), values, ranks), {0: 0, 1: 1, 2: 2}, "height").burn(Window(0, 0, 9, 9))
    assert (burnt == values[399]).all()


def test_area_of_interest_background_and_gaps_of_the_image(tmp_path):
    pixels = random_pixels(3, HEIGHT, WIDTH)
    pixels[:, :15] = 0
    image = write_raster(tmp_path / "ortho.tif", pixels, nodata=0, **UTM)
    interest = [shapely.box(0, 0, 100, 110), shapely.box(90, 50, 140, 60)]
    labels = draw(tmp_path / "labels.gpkg", SHAPES, CLASSES)
    aoi = draw(tmp_path / "aoi.gpkg", interest, [1, 2], crs="EPSG:4326")
    manifest, _ = prepare(image, labels, tmp_path / "data", chip=0, interest=aoi, background="other")
    assert [row["name"] for row in manifest["classes"]][:4] == ["other", "road", "roof", "tree"]
    truth = expected(SHAPES, [2, 3, 1], background=0)
    truth[expected(interest, [1, 1]) == 255] = 255
    truth[:15] = 255
    np.testing.assert_array_equal(whole_mask(tmp_path / "data"), truth)
    sums = np.array(manifest["images"][0]["sums"])
    np.testing.assert_array_equal(sums[:, 0], WIDTH * (HEIGHT - 15))  # what has no data counts for no mean
    np.testing.assert_array_equal(sums[:, 1], pixels.sum(axis=(1, 2)))


@pytest.mark.parametrize(("dtype", "filler"), [("uint8", 0), ("int16", -9999), ("uint16", 65535), ("float32", -9999)])
def test_gaps_stay_gaps_in_all_bands_and_in_one(dtype, filler, tmp_path):
    """Training on the chips is shown what `crisp predict` shows of the scene, and means know nothing of fillers."""
    pixels = random_pixels(3, HEIGHT, WIDTH).astype(dtype)
    pixels[:, :15] = filler
    pixels[1, 40:60, 30:50] = filler
    image = write_raster(tmp_path / "ortho.tif", pixels, nodata=filler, **UTM)
    labels = draw(tmp_path / "labels.gpkg", SHAPES, CLASSES)
    prepare(image, labels, tmp_path / "data", chip=0, background="other")
    folder = open_folder(tmp_path / "data", split={"ortho": "train"})
    known = [band[band != filler].astype(float) for band in pixels]
    np.testing.assert_allclose(folder.statistics().mean, [band.mean() for band in known])
    np.testing.assert_allclose(folder.statistics().std, [band.std() for band in known])
    dataset = SegmentationDataset(folder, "train")
    dataset.show_means((1.0, 2.0, 3.0))
    shown, mask, _ = dataset[0]
    scene = RasterSource(image, (1, 2, 3), (1.0, 2.0, 3.0))
    np.testing.assert_array_equal(shown, read_reflected(scene, Window(0, 0, HEIGHT, WIDTH)).values)
    assert (mask[:15] == 255).all() and (mask[40:60, 30:50] == 255).all() == (dtype == "float32")
    histogram = read_manifest(tmp_path / "data")["images"][0]["labels"]["full"]["histogram"]
    assert histogram == folder.class_counts(folder.records("train")[0])


def test_sixteen_bits_bands_alpha_and_several_images(tmp_path):
    pixels = random_pixels(5, HEIGHT, WIDTH, np.uint16, high=60_000)
    names = ["blue", "green", "red", "nir", "swir"]
    here = write_raster(tmp_path / "a.tif", pixels, descriptions=names, photometric="minisblack", **UTM)
    there = write_raster(tmp_path / "b.tif", pixels, descriptions=names, photometric="minisblack",
                         crs=UTM["crs"], transform=rasterio.Affine(0.5, 0, 900_000, 0, -0.5, 5_000_000))  # fmt: skip
    labels = draw(tmp_path / "labels.gpkg", SHAPES, [3, 7, 11])
    manifest, told = prepare([here, there], labels, tmp_path / "data", chip=0, bands=("nir", "3", "green"))
    assert manifest["bands"] == ["nir", "red", "green"] and [e["name"] for e in manifest["images"]] == ["a"]
    assert told == [f"no polygon of {labels} lies on {there}: left out"]
    stored = read_raster(tmp_path / "data" / "images" / "a.tif")
    assert stored.dtype == np.uint16
    np.testing.assert_array_equal(stored, pixels[[3, 2, 1]])
    assert [row["name"] for row in manifest["classes"]][:3] == ["3", "7", "11"], "numbers by size"
    np.testing.assert_array_equal(whole_mask(tmp_path / "data", "a"), expected(SHAPES, [0, 1, 2]))


def test_a_class_table_and_the_colours_of_qgis(ortho, tmp_path):
    labels = draw(tmp_path / "labels.gpkg", SHAPES, CLASSES)
    style = Style(("roof", "tree"), ((1, 2, 3), (4, 5, 6)))
    add_style_to_geopackage(tmp_path / "labels.gpkg", "drawn", style.vector_qml((0, 1)))
    manifest, _ = prepare(ortho, labels, tmp_path / "styled")
    colours = {row["name"]: row.get("colour") for row in manifest["classes"]}
    assert (colours["roof"], colours["tree"]) == ([1, 2, 3], [4, 5, 6])
    assert colours["road"] == list(EXPECTED["road"]), "drawn without a colour: what people expect of the name"
    (tmp_path / "classes.csv").write_text("name,id\ntree,5\nroof,6\nroad,7\n", encoding="utf-8")
    manifest, _ = prepare(ortho, labels, tmp_path / "given", chip=0, classes=str(tmp_path / "classes.csv"))
    np.testing.assert_array_equal(whole_mask(tmp_path / "given"), expected(SHAPES, [1, 0, 2]))
    (tmp_path / "classes.csv").write_text("name,id\ntree,5\nroof,6\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"'road' in the field 'class' is no class of .*classes.csv"):
        prepare(ortho, labels, tmp_path / "other", classes=str(tmp_path / "classes.csv"))


def test_the_command_and_its_picture(ortho, tmp_path, capsys):
    labels = draw(tmp_path / "labels.gpkg", SHAPES, CLASSES)
    given = {"--image": ortho, "--labels": labels, "--field": "class", "--out": tmp_path / "my d"}
    words = ["prepare", "vector", *(str(word) for pair in given.items() for word in pair)]
    assert cli.main(words) == 0
    told = capsys.readouterr().out
    assert "wrote 1 images" in told and "red, green, blue, pixels of 0.5 m" in told and "labels.png" in told
    assert f"crisp train 'data={tmp_path / 'my d'}'" in told, "it can be pasted"
    with Image.open(tmp_path / "my d" / "labels.png") as picture:
        colours = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    palette = [
        tuple(row["colour"]) for row in json.loads((tmp_path / "my d" / "dataset.json").read_text())["classes"][:3]
    ]
    assert set(palette) <= set(map(tuple, colours)), "the legend shows every class"
    assert cli.main(words) == 1 and "is there already" in capsys.readouterr().err


def test_mistakes_are_one_sentence_each(ortho, tmp_path, capsys):
    labels = draw(tmp_path / "labels.gpkg", SHAPES, CLASSES)
    nowhere = draw(tmp_path / "nowhere.gpkg", [shapely.box(5000, 5000, 5100, 5100)], ["roof"])
    bare = draw(tmp_path / "bare.gpkg", SHAPES, CLASSES, crs=None)
    plain = write_raster(tmp_path / "plain.tif", random_pixels(3, 40, 40))
    lists = tmp_path / "lists.geojson"
    lists.write_text(json.dumps({"type": "FeatureCollection", "features": [
        {"type": "Feature", "properties": {"class": [1, 2]}, "geometry": shapely.geometry.mapping(SHAPES[0])}
    ]}))  # fmt: skip
    (tmp_path / "evil.geojson").write_text('{"type": "gdal_streamed_alg", "command_line": "gdal vector pipeline"}')
    pyogrio.raw.write(
        tmp_path / "points.gpkg", shapely.to_wkb(np.array([shapely.Point(1, 2)], object)), [np.array(["a"], object)],
        ["class"], crs="EPSG:32633", geometry_type="Point", driver="GPKG",
    )  # fmt: skip
    for image, path, field, reason in [
        (ortho, tmp_path / "none.gpkg", "class", "there is no file"),
        (tmp_path / "none.tif", labels, "class", "there is no file"),
        (ortho, labels, "klass", "has no field 'klass'; did you mean 'class'?"),
        (ortho, nowhere, "class", "do not overlap"),
        (ortho, lists, "class", "field 'class' holds lists, not one value per polygon"),
        (ortho, bare, "class", "say which it is drawn in"),
        (plain, labels, "class", "has no coordinate reference system, so polygons in EPSG:32633 cannot be put on it"),
        (ortho, tmp_path / "points.gpkg", "class", "has no layer of polygons"),
        (ortho, tmp_path / "evil.geojson", "class", "names another source"),
        (ortho, ortho, "class", "cannot be read as polygons"),
    ]:
        words = ["--image", image, "--labels", path, "--field", field, "--out", tmp_path / "out"]
        assert cli.main(["prepare", "vector", *map(str, words)]) == 1
        err = capsys.readouterr().err
        assert reason in err.splitlines()[-1] and "Traceback" not in err
        assert not (tmp_path / "out").exists()
    assert cli.main(["prepare", "vector", "--out", "x"]) == 1
    assert "needs --image, --labels, --field" in capsys.readouterr().err
    assert cli.main(["prepare", "potsdam", "--out", "x"]) == 1
    assert "needs --source" in capsys.readouterr().err
    words = ["--image", str(ortho), "--labels", str(labels), "--field", "class", "--out", str(tmp_path / "out")]
    assert cli.main(["prepare", "vector", *words, "--check"]) == 1 and not (tmp_path / "out").exists()
    assert "--check is for the archives of known data sets, not for vector; leave it out" in capsys.readouterr().err
    assert cli.main(["prepare", "potsdam", "--source", str(tmp_path), "--out", "x", "--aoi-layer", "a"]) == 1
    assert "--aoi-layer is for drawn polygons (vector), not for potsdam; leave it out" in capsys.readouterr().err
