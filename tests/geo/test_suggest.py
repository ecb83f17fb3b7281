"""Windows to label, against a plain search over the whole confidence map."""

import json
from pathlib import Path

import numpy as np
import pyogrio
import pytest
import shapely

from crispseg.cli.main import main
from crispseg.errors import UserError
from crispseg.geo import store
from crispseg.geo.suggest import least_certain, suggest
from tests.geo.rasters import UTM, write_raster


@pytest.fixture
def maps(tmp_path):
    """A map of two classes; its confidence is low in two places and missing in a corner."""
    draws = np.random.default_rng(1)
    classes = draws.integers(0, 2, (20, 30)).repeat(16, 0).repeat(16, 1).astype(np.uint8)
    confidence = draws.integers(220, 255, classes.shape).astype(np.uint8)
    confidence[64:128, 128:192] = 60
    confidence[208:272, 304:368] = 90
    confidence[:100, :100] = 255
    tags = {"CLASSES": json.dumps({0: "land", 1: "water"})}
    path = write_raster(tmp_path / "map.tif", classes, nodata=255, tags=tags, **UTM)
    write_raster(tmp_path / "map_confidence.tif", confidence, nodata=255, **UTM)
    return path, classes, confidence


def mean_doubt(confidence, window):
    part = confidence[window.top : window.top + window.height, window.left : window.left + window.width]
    known = part != 255
    return (1 - part[known] / 254).mean() if known.mean() >= 0.5 else -1.0


def test_the_least_certain_windows_are_found(maps):
    path, _, confidence = maps
    chosen = least_certain(path.replace("map.tif", "map_confidence.tif"), 4, 64)
    assert [(w.top, w.left) for w in chosen[:2]] == [(64, 128), (208, 304)]  # windows begin at every fourth of a side
    for window in chosen:
        assert 1 - window.confidence == pytest.approx(mean_doubt(confidence, window))
    places = [(top, left) for top in range(0, 320 - 63, 16) for left in range(0, 480 - 63, 16)]
    best = max(mean_doubt(confidence, chosen[0]._replace(top=t, left=x)) for t, x in places)
    assert 1 - chosen[0].confidence == pytest.approx(best)
    boxes = [shapely.box(w.left, w.top, w.left + w.width, w.top + w.height) for w in chosen]
    assert shapely.union_all(boxes).area == sum(box.area for box in boxes)  # none over another


@pytest.mark.parametrize(
    ("dtype", "filler", "nodata"),
    [("uint8", 255, 255), ("float32", np.nan, np.nan), ("float32", np.nan, None), ("float32", -1, -1)],
)
def test_holes_of_any_kind_are_left_out(tmp_path, dtype, filler, nodata):
    draws = np.random.default_rng(7)
    levels = draws.integers(0, 255, (64, 96))
    hole = draws.random(levels.shape) < 0.4
    hole[:20, :40] = True
    values = levels.astype(dtype) / (1 if dtype == "uint8" else 254)
    path = write_raster(tmp_path / "sure.tif", np.where(hole, filler, values).astype(dtype), nodata=nodata)
    confidence = np.where(hole, np.nan, levels / 254)
    means = {}
    for top in range(0, 64 - 15, 4):
        for left in range(0, 96 - 15, 4):
            part = confidence[top : top + 16, left : left + 16]
            if np.isfinite(part).mean() >= 0.5:
                means[top, left] = np.nanmean(part)
    expected = []
    for (top, left), mean in sorted(means.items(), key=lambda item: item[1]):
        if all(abs(top - w[0]) >= 16 or abs(left - w[1]) >= 16 for w in expected):
            expected.append((top, left, mean))
    chosen = least_certain(path, 5, 16)
    assert [(w.top, w.left) for w in chosen] == [(top, left) for top, left, _ in expected[:5]]
    assert [w.confidence for w in chosen] == pytest.approx([mean for *_, mean in expected[:5]], rel=1e-5)


@pytest.mark.parametrize(("value", "dtype"), [(97, "float32"), (-0.5, "float32"), (20_000, "uint16")])
def test_numbers_that_are_no_confidence_are_refused(tmp_path, value, dtype):
    values = np.full((32, 32), 0.5 if dtype == "float32" else 0, dtype)
    values[9, 9] = value
    path = write_raster(tmp_path / "percent.tif", values, nodata=255)
    with pytest.raises(UserError, match=f"percent.tif holds a confidence of {value}; it must be from 0 to 1"):
        least_certain(path, 1, 16)


def test_the_package_holds_windows_and_the_predicted_regions_in_them(maps):
    path, classes, _ = maps
    target, chosen = suggest(path, count=3, side=64)
    assert target.name == "map_windows.gpkg"
    assert [name for name, _ in pyogrio.list_layers(target)] == ["labels", "windows", "layer_styles"]
    meta, _, shapes, values = pyogrio.raw.read(target, layer="labels")
    fields = dict(zip(meta["fields"], values, strict=True))
    polygons = shapely.from_wkb(shapes)
    assert meta["crs"] == "EPSG:32633" and set(fields["class"]) == {"land", "water"}
    for number, window in enumerate(chosen, 1):
        part = classes[window.top : window.top + 64, window.left : window.left + 64]
        for k in (0, 1):
            own = polygons[(fields["window"] == number) & (fields["class_id"] == k)]
            assert shapely.area(own).sum() == pytest.approx(0.25 * (part == k).sum())
    _, _, shapes, _ = pyogrio.raw.read(target, layer="windows")
    frames = shapely.from_wkb(shapes)
    assert shapely.bounds(frames[0]).tolist() == pytest.approx([400_064, 4_999_936, 400_096, 4_999_968])
    assert shapely.union_all(frames).buffer(1e-6).covers(shapely.union_all(polygons))


def test_the_confidence_beside_a_map_in_a_bucket_is_found(maps, bucket, tmp_path):
    path = Path(maps[0])
    store.put(path, f"{bucket}/city/map.tif")
    with pytest.raises(UserError, match="there is no s3://bucket/city/map_confidence.tif, which says"):
        suggest(f"{bucket}/city/map.tif", out=str(tmp_path / "windows.gpkg"))
    store.put(path.with_name("map_confidence.tif"), f"{bucket}/city/map_confidence.tif")
    chosen = suggest(f"{bucket}/city/map.tif", count=3, side=64, out=str(tmp_path / "windows.gpkg"))[1]
    assert chosen == suggest(str(path), count=3, side=64, out=str(tmp_path / "local.gpkg"))[1]


def test_mistakes_are_told(maps, tmp_path, capsys):
    path, classes, _ = maps
    lonely = write_raster(tmp_path / "lonely.tif", classes)
    with pytest.raises(UserError, match="lonely_confidence.tif.*crisp predict --confidence"):
        suggest(lonely)
    with pytest.raises(UserError, match="do not belong together"):
        suggest(path, write_raster(tmp_path / "small.tif", classes[:50]))
    with pytest.raises(UserError, match="at least one window"):
        suggest(path, count=0)
    empty = write_raster(tmp_path / "empty.tif", np.full(classes.shape, 255, np.uint8), nodata=255)
    with pytest.raises(UserError, match="empty.tif has no data anywhere"):
        suggest(path, empty, side=64)
    speck = np.full(classes.shape, 255, np.uint8)
    speck[-1, -1] = 7
    with pytest.raises(UserError, match="no window of 64 px"):
        suggest(path, write_raster(tmp_path / "speck.tif", speck, nodata=255), side=64)
    assert main(["suggest", path, "--count", "500", "--side", "128"]) == 0
    assert "no more fit" in capsys.readouterr().out
    assert main(["suggest", path]) == 1  # corrections may be in it by now
    assert "is there already" in capsys.readouterr().err


def test_the_loop_back_to_labels(maps, tmp_path):
    """What was suggested goes through `crisp prepare vector` and comes out as the map was, in the windows alone."""
    from crispseg.data.folder import open_folder

    path, classes, _ = maps
    image = write_raster(tmp_path / "image.tif", np.stack([classes * 90 + 10] * 3), **UTM)
    target, chosen = suggest(path, count=2, side=64)
    words = ["--image", image, "--labels", str(target), "--layer", "labels", "--field", "class", "--chip", "0"]
    words += ["--aoi", str(target), "--aoi-layer", "windows", "--out", str(tmp_path / "data")]
    assert main(["prepare", "vector", *words]) == 0
    folder = open_folder(tmp_path / "data", split={"image": "val"})
    assert folder.table.names == ("land", "water")
    expected = np.full(classes.shape, 255, np.uint8)
    for w in chosen:
        part = (slice(w.top, w.top + w.height), slice(w.left, w.left + w.width))
        expected[part] = classes[part]
    np.testing.assert_array_equal(folder.read_mask(folder.records("val")[0]), expected)
