"""STAC files as scenes, and the item beside each map: made and read back with pystac, validated without a network."""

import copy
import dataclasses
import datetime
import json
import socket
from pathlib import Path

import numpy as np
import pytest
import rasterio
import shapely

from crispseg.cli import main as cli
from crispseg.errors import UserError
from crispseg.geo import store
from crispseg.geo.grid import Grid
from crispseg.geo.lonlat import footprint
from crispseg.geo.maps import MapChoice
from crispseg.geo.polygons import PolygonChoice
from crispseg.geo.scenes import find_scenes
from crispseg.geo.stac.write import _bbox
from crispseg.predict.bands import Pace
from crispseg.predict.batch import predict_scenes
from crispseg.predict.scene import Request
from crispseg.predict.work import Settings
from tests.geo.rasters import UTM, random_pixels, read_raster, write_raster
from tests.geo.servers import range_server
from tests.geo.stac.rules import check_extensions
from tests.predict.standins import StandIn

pystac = pytest.importorskip("pystac")

SMALL = Request(Settings(32, 8), pace=Pace(2, 2))
WHEN = datetime.datetime(2024, 5, 17, 10, 30, tzinfo=datetime.UTC)
COG = "image/tiff; application=geotiff; profile=cloud-optimized"


@pytest.fixture
def offline(monkeypatch):
    """No schema may be fetched."""

    def refuse(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def make_item(folder, name, href=None, seed=0):
    write_raster(folder / f"{name}.tif", random_pixels(3, 60, 50, seed=seed), **UTM)
    item = pystac.Item(name, {"type": "Point", "coordinates": [15.0, 45.0]}, [15, 45, 15, 45], WHEN, {"gsd": 0.5})
    item.add_asset("visual", pystac.Asset(href or f"./{name}.tif", media_type=COG, roles=["data"]))
    item.add_asset("thumbnail", pystac.Asset("./small.png", media_type="image/png", roles=["thumbnail"]))
    return item


def save(path, thing):
    path.write_text(json.dumps(thing if isinstance(thing, dict) else thing.to_dict()), encoding="utf-8")
    return str(path)


def test_an_item_a_search_result_and_a_collection_name_the_same_scenes(tmp_path):
    items = [make_item(tmp_path, name, seed=k) for k, name in enumerate(("a", "b", "c"))]
    files = [save(tmp_path / f"{item.id}.json", item) for item in items]
    paths = [str(tmp_path / f"{item.id}.tif") for item in items]
    assert [scene.path for scene in find_scenes(files)] == paths, "one raster, so --asset may be left out"
    result = {"type": "FeatureCollection", "features": [item.to_dict() for item in items]}
    search = save(tmp_path / "search.json", result)
    assert [scene.path for scene in find_scenes([search], "visual")] == paths
    extent = pystac.Extent(pystac.SpatialExtent([[15, 45, 16, 46]]), pystac.TemporalExtent([[WHEN, None]]))
    collection = pystac.Collection("towns", "some towns", extent).to_dict()
    collection["links"] += [{"rel": "item", "href": f"./{item.id}.json", "type": "application/json"} for item in items]
    found = find_scenes([save(tmp_path / "collection.json", collection)], "visual")
    assert [scene.path for scene in found] == paths and [scene.name for scene in found] == ["a", "b", "c"]
    assert found[0].item.properties == {"datetime": "2024-05-17T10:30:00Z", "gsd": 0.5}
    both = find_scenes([*files, search], "visual")
    assert len(both) == 3, "each scene once"


@pytest.mark.parametrize("kind", ["Feature", "FeatureCollection", "Catalog"])
def test_a_catalogue_in_the_current_folder(tmp_path, monkeypatch, kind):
    """`crisp predict search.json` looked for the scenes in the root of the disk."""
    item = make_item(tmp_path, "a", href="a.tif").to_dict()
    catalogue = pystac.Catalog("towns", "some towns").to_dict()
    catalogue["links"] += [{"rel": "item", "href": "a.json", "type": "application/json"}]
    save(tmp_path / "a.json", item)
    whole = {"Feature": item, "FeatureCollection": {"type": kind, "features": [item]}, "Catalog": catalogue}[kind]
    save(tmp_path / "search.json", whole)
    monkeypatch.chdir(tmp_path)
    (found,) = find_scenes(["search.json"], "visual")
    assert found.path == str(tmp_path / "a.tif")
    named = {"Feature": "search.json", "Catalog": "a.json"}.get(kind)
    assert found.item.href == (str(tmp_path / named) if named else ""), "the map's item leads to it from any folder"


def test_names_that_are_no_file_names(tmp_path):
    item = make_item(tmp_path, "a")
    item.id = "S2A_32/../x: y"
    assert find_scenes([save(tmp_path / "x.json", item)])[0].name == "S2A_32_.._x_y"


@pytest.mark.parametrize(
    ("left", "width", "expected"),
    [(0, 360, (-180, 180)), (-180, 360, (-180, 180)), (179, 2, (179, -179)), (10, 355, (10, 5))],
)
def test_the_box_of_a_map_across_the_date_line(left, width, expected):
    """That of a map of the world from 0 to 360 degrees was empty: from 0 to 0."""
    grid = Grid(2, 10, (width / 10, 0, left, 0, -1.0, 50.0), rasterio.CRS.from_epsg(4326).to_wkt())
    np.testing.assert_allclose(_bbox(footprint(grid)), [expected[0], 48, expected[1], 50])


def test_mistakes_are_explained(tmp_path):
    item = save(tmp_path / "a.json", make_item(tmp_path, "a"))
    bare = {"type": "Feature", "stac_version": "1.0.0", "id": "x"}
    for word, asset, reason in [
        (item, "visuel", "item a has no asset 'visuel'; did you mean 'visual'?"),
        (save(tmp_path / "x.json", {"type": "Topology"}), "", "is no STAC item, collection or search result"),
        (save(tmp_path / "e.json", {"type": "FeatureCollection", "features": []}), "", "has no items"),
        (save(tmp_path / "b.json", {"type": "Feature", "id": "x"}), "", "cannot be read as STAC"),
        (save(tmp_path / "l.json", {"type": "FeatureCollection", "features": [bare]}), "", "it lacks 'properties'"),
        (str(tmp_path / "none.json"), "", "there is no file"),
        (str(tmp_path / "a.tif"), "visual", "--asset names an asset of STAC items"),
    ]:
        with pytest.raises(UserError, match=reason):
            find_scenes([word], asset)
    two = make_item(tmp_path, "two")
    two.add_asset("nir", pystac.Asset("./nir.tif", media_type=COG))
    with pytest.raises(UserError, match="has the assets visual, thumbnail, nir; choose one with --asset"):
        find_scenes([save(tmp_path / "two.json", two)])
    (tmp_path / "text.json").write_text("{no json", encoding="utf-8")
    with pytest.raises(UserError, match=r"text.json"):
        find_scenes([str(tmp_path / "text.json")])


def test_a_catalogue_from_elsewhere_names_no_file_of_this_machine(tmp_path):
    save(tmp_path / "evil.json", make_item(tmp_path, "evil", href="/etc/passwd"))
    save(tmp_path / "good.json", make_item(tmp_path, "good"))
    save(tmp_path / "ftp.json", make_item(tmp_path, "ftp", href="ftp://host/x.tif"))
    with range_server(tmp_path) as address:
        assert find_scenes([f"{address}/good.json"])[0].path == f"{address}/good.tif"
        assert find_scenes([f"{address}/evil.json"])[0].path == f"{address}/etc/passwd", "a path of that server"
        with pytest.raises(UserError, match="only s3://, gs://, az:// and https:// are understood"):
            find_scenes([f"{address}/ftp.json"])


def test_a_link_that_leads_nowhere_is_told_with_its_reason(tmp_path):
    catalogue = pystac.Catalog("root", "root")
    catalogue.add_link(pystac.Link("item", "./gone.json", "application/json"))
    save(tmp_path / "catalog.json", catalogue)
    lost = pytest.raises(UserError, match=r"catalog.json cannot be read as STAC: .*gone.json cannot be read: .*404")
    with range_server(tmp_path) as address, lost:
        find_scenes([f"{address}/catalog.json"])


def validated(path):
    """The item, checked against the core schema that comes with pystac, and against what its extensions ask."""
    written = json.loads(path.read_text(encoding="utf-8"))
    check_extensions(written)
    item = pystac.Item.from_file(str(path))
    core = copy.deepcopy(written)
    core["stac_extensions"] = []
    pystac.Item.from_dict(core).validate()
    return item


def test_many_scenes_as_one_run_with_an_item_beside_each_map(tmp_path, offline):
    from pystac.extensions.classification import ClassificationExtension
    from pystac.extensions.projection import ProjectionExtension
    from pystac.extensions.raster import RasterExtension

    items = [make_item(tmp_path, name, seed=k) for k, name in enumerate(("a", "b"))]
    files = [save(tmp_path / f"{item.id}.json", item) for item in items]
    request = dataclasses.replace(SMALL, maps=MapChoice(True, True, True), polygons=PolygonChoice("gpkg"))
    report = predict_scenes(files, str(tmp_path / "maps"), StandIn(), request, asset="visual")
    assert not report.failures and len(report.results) == 2
    item = validated(tmp_path / "maps" / "a.stac.json")
    assert item.datetime == WHEN and item.properties["gsd"] == 0.5
    assert item.properties["crispseg:model"] == "stand_in"
    assert [link.href for link in item.links if link.rel == "derived_from"] == [files[0]]
    projection = ProjectionExtension.ext(item)
    assert (projection.code, projection.shape) == ("EPSG:32633", [60, 50])
    assert projection.transform == [0.5, 0, 400_000, 0, -0.5, 5_000_000]
    with rasterio.open(tmp_path / "a.tif") as scene:
        corners = rasterio.warp.transform_bounds(scene.crs, "EPSG:4326", *scene.bounds)
    np.testing.assert_allclose(item.bbox, corners, atol=1e-6)
    assert shapely.geometry.shape(item.geometry).exterior.is_ccw
    classes = ClassificationExtension.ext(item.assets["classes"]).classes
    assert [(c.value, c.name, c.description) for c in classes[:2]] == [(0, "kind_0", "kind 0"), (1, "kind_1", "kind 1")]
    assert classes[1].color_hint == "0AFE01" and (classes[-1].value, classes[-1].nodata) == (255, True)
    bands = RasterExtension.ext(item.assets["probabilities"]).bands
    assert len(bands) == 5 and (bands[0].data_type, bands[0].nodata, bands[0].scale) == ("uint8", 255, 1 / 254)
    assert RasterExtension.ext(item.assets["classes"]).bands[0].spatial_resolution == 0.5
    for key, asset in item.assets.items():
        assert (tmp_path / "maps" / asset.href.removeprefix("./")).is_file(), key
    assert item.assets["polygons"].media_type == "application/geopackage+sqlite3"
    assert not [uri for uri in item.stac_extensions if "mlm" in uri], "it describes models and asks for one as an asset"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda item: item["stac_extensions"].pop(),
        lambda item: item["stac_extensions"].append("https://stac-extensions.github.io/mlm/v1.4.0/schema.json"),
        lambda item: item["properties"].update({"proj:epsg": 32633}),  # of version 1
        lambda item: item["properties"].update({"proj:shape": [60.0, 50.0]}),
        lambda item: item["properties"].update({"proj:transform": [0.5, 0]}),
        lambda item: item["assets"]["classes"]["classification:classes"][0].update(name="kind 0"),
        lambda item: item["assets"]["classes"]["classification:classes"][0].update(value=1),
        lambda item: item["assets"]["classes"]["raster:bands"][0].update(data_type="byte"),
    ],
)
def test_the_rules_of_the_extensions_find_what_breaks_them(spoil, written_item):
    item = copy.deepcopy(written_item)
    assert check_extensions(item) == {"projection", "raster", "classification"}
    spoil(item)
    with pytest.raises(AssertionError):
        check_extensions(item)


@pytest.fixture(scope="module")
def written_item(tmp_path_factory):
    folder = tmp_path_factory.mktemp("item")
    scene = write_raster(folder / "scene.tif", random_pixels(3, 40, 50), **UTM)
    predict_scenes([scene], str(folder / "maps"), StandIn(), dataclasses.replace(SMALL, stac=True))
    return json.loads((folder / "maps" / "scene.stac.json").read_text(encoding="utf-8"))


def test_an_item_of_a_scene_that_came_from_no_catalogue(tmp_path, offline):
    scene = write_raster(tmp_path / "scene.tif", random_pixels(3, 40, 50), **UTM)
    plain = write_raster(tmp_path / "plain.tif", random_pixels(3, 40, 50))
    request = dataclasses.replace(SMALL, stac=True)
    assert not predict_scenes([scene, plain], str(tmp_path / "maps"), StandIn(), request).failures
    assert validated(tmp_path / "maps" / "scene.stac.json").datetime is not None
    item = validated(tmp_path / "maps" / "plain.stac.json")
    assert item.geometry is None and item.bbox is None and item.properties.get("proj:code") is None
    assert not predict_scenes([scene], str(tmp_path / "without.tif"), StandIn(), SMALL).failures
    assert not (tmp_path / "without.stac.json").exists()


def test_the_time_of_a_scene_of_a_bucket_is_that_of_its_object(bucket, tmp_path):
    """It was the first second of 1970."""
    scene = write_raster(tmp_path / "scene.tif", random_pixels(3, 40, 50), **UTM)
    store.put(Path(scene), f"{bucket}/scene.tif")
    stac = dataclasses.replace(SMALL, stac=True)
    assert not predict_scenes([f"{bucket}/scene.tif"], str(tmp_path / "maps"), StandIn(), stac).failures
    when = pystac.Item.from_file(str(tmp_path / "maps" / "scene.stac.json")).datetime
    assert abs(when - datetime.datetime.now(datetime.UTC)) < datetime.timedelta(minutes=5)


def test_a_reference_system_without_a_code_is_written_out(tmp_path, offline):
    own = rasterio.crs.CRS.from_string("+proj=laea +lat_0=10 +lon_0=20 +ellps=WGS84 +units=m")
    scene = write_raster(tmp_path / "scene.tif", random_pixels(3, 40, 50), **{**UTM, "crs": own})
    predict_scenes([scene], str(tmp_path / "maps"), StandIn(), dataclasses.replace(SMALL, stac=True))
    item = validated(tmp_path / "maps" / "scene.stac.json")
    assert item.properties.get("proj:code") is None
    assert rasterio.crs.CRS.from_wkt(item.properties["proj:wkt2"]) == own


def test_the_command(tmp_path, monkeypatch, capsys):
    from crispseg.cli import predict as verb

    monkeypatch.setattr(verb, "_open_model", lambda *_: StandIn())
    item = save(tmp_path / "a.json", make_item(tmp_path, "a"))
    words = ["predict", item, "--asset", "visual", "-o", str(tmp_path / "map.tif"), "--tile", "32"]
    assert cli.main(words) == 0, capsys.readouterr().err
    assert (tmp_path / "map.stac.json").is_file()
    assert read_raster(tmp_path / "map.tif").shape == (1, 60, 50)
