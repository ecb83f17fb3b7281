"""`crisp demo` as a user meets it, on a small scene; and the scene that the package ships."""

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import crispseg
from crispseg.cli.main import main
from crispseg.data.images import read_mask
from crispseg.data.known import AERIAL, DUBAI
from crispseg.data.labels import encode
from crispseg.demo import page
from crispseg.demo import run as demo_run
from crispseg.demo.buildings import find_buildings
from crispseg.demo.held_out import HeldOut, Patches
from crispseg.errors import UserError
from crispseg.models.base import ModelInfo
from crispseg.predict.scene import Watcher
from tests.fakedata import scenes
from tests.models.test_registered import SHRINK_CRISP

SHARED = Path(__file__).parents[3] / "shared" / "data"
FILES = {
    "buildings.png", "close_up.png", "index.html", "map.geojson", "map.gpkg", "map.qml", "map.tif", "map.tif.aux.xml",
    "map_confidence.tif", "scene.jpg", "scores.json", "side_by_side.png", "truth.png",
}  # fmt: skip


def coloured(ids):
    """Labels as the shipped scene has them: in the class table's colours."""
    return np.array((*AERIAL.colours, *[(0, 0, 0)] * 251), np.uint8)[ids]


@pytest.fixture
def scene(tmp_path):
    folder = tmp_path / "scene"
    image, ids = scenes.scene(np.random.default_rng(1), (96, 128), classes=5)
    ids[:6, :9] = 255
    scenes.save(folder / "image.jpg", image)
    scenes.save(folder / "truth.png", coloured(ids))
    return HeldOut(folder, close_up=(slice(10, 60), slice(20, 90)))


@pytest.fixture
def model(tmp_path):
    return saved_model(tmp_path / "model", AERIAL.names)


def saved_model(path, classes):
    model = crispseg.create_model("crisp_nano", num_classes=len(classes), **SHRINK_CRISP)
    info = ModelInfo(
        classes, AERIAL.colours[: len(classes)], mean=(120.0,) * 3, std=(60.0,) * 3, training_data="toys #0123456789, x"
    )
    model.info = info
    model.save(path)
    return path


class Ear(Watcher):
    def __init__(self):
        self.heard = []

    def say(self, what):
        self.heard.append(what)


def test_everything_is_there_and_agrees(scene, model, tmp_path):
    ear, out = Ear(), tmp_path / "new" / "demo"
    demo = demo_run.run_demo(out, model, scene, ear)
    assert {path.name for path in out.iterdir()} == FILES
    predicted, truth = read_mask(out / "map.tif"), scene.truth()
    assert np.array_equal(predicted, crispseg.segment(out / "scene.jpg", model))
    assert any("no coordinate reference system" in text for text in ear.heard)
    scores = json.loads((out / "scores.json").read_text())
    assert scores["scores"]["mIoU"] == pytest.approx(mean_iou(predicted, truth)) == pytest.approx(demo.scores.miou)
    assert 0 <= scores["boundary"]["BF@3px"] <= 1 and "128 x 96 px" in scores["conditions"]
    check_polygons(out, predicted)


def mean_iou(predicted, truth):
    """By sets of pixels, one class after the other."""
    ious = []
    for c in range(5):
        found = {(y, x) for y, x in np.argwhere(predicted == c) if truth[y, x] != 255}
        true = set(map(tuple, np.argwhere(truth == c)))
        if found | true:
            ious.append(len(found & true) / len(found | true))
    return sum(ious) / len(ious)


def check_polygons(out, predicted):
    """Both files have the same regions, which cover the map and carry names and confidence."""
    import pyogrio
    import shapely

    tables = []
    for name in ("map.gpkg", "map.geojson"):
        meta, _, geometry, columns = pyogrio.raw.read(out / name, layer="classes")
        fields = dict(zip(meta["fields"], columns, strict=True))
        assert {"class_id", "class", "area", "confidence"} <= set(fields)
        assert set(fields["class"]) <= set(AERIAL.names) and sum(fields["area"]) == predicted.size
        tables.append(sorted(zip(fields["class"], shapely.area(shapely.from_wkb(geometry)).round(3), strict=True)))
    assert tables[0] == tables[1]


def test_the_page_stands_alone_and_its_links_lead_somewhere(scene, model, tmp_path):
    demo_run.run_demo(tmp_path / "demo", model, scene)
    page = (tmp_path / "demo" / "index.html").read_text(encoding="utf-8")
    links = re.findall(r'href="([^"]+)"', page)
    assert set(links) == FILES - {"index.html", "side_by_side.png", "close_up.png", "buildings.png"}
    assert all((tmp_path / "demo" / link).is_file() for link in links)
    shown = [base64.b64decode(data) for data in re.findall(r'src="data:image/(?:png|jpeg);base64,([^"]+)"', page)]
    assert page.count("<img") == len(shown) == 14 and len(re.findall(r'<img [^>]*alt="[^"]{5,}"', page)) == 14
    assert Image.open(io.BytesIO(shown[0])).size == Image.open(io.BytesIO(shown[1])).size  # the divider's two halves
    assert page.index('class="compare"') < page.index('class="figures"')  # the divider comes first
    assert "http" not in page.replace("http-equiv", "") and not re.search(r"<script [^>]*src", page)
    for said in (
        *AERIAL.names,
        "CC0",
        "Trained on toys, x.",
        "Land Information New Zealand",
        "CC BY 4.0",
        "validate",
        "without a georeference",
        "crisp predict",
        "crisp demo --out",
    ):
        assert said in page
    assert "#0123456789" not in page and "What it cannot do" not in page  # what is known of ours is not said of others
    write_again(model, notes="Knows toys alone.")
    demo_run.run_demo(tmp_path / "demo", model, scene, existing="replace")
    page = (tmp_path / "demo" / "index.html").read_text(encoding="utf-8")
    assert "What it cannot do" in page and "Knows toys alone." in page


def write_again(folder, **facts):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["info"].update(facts)
    path.write_text(json.dumps(config))


def test_patches_are_segmented_one_by_one(tmp_path, model):
    """The second example against sets of pixels; patches do not touch, so none may see its neighbour."""
    patches = Patches()
    network = crispseg.load(model)
    found = find_buildings(network, patches)
    image, truth = patches.image(), patches.truth() == 1
    assert image.shape == (448, 896, 3) and found.count == 8 and 0.2 < truth.mean() < 0.6
    expected = np.zeros_like(truth)
    for top in (0, 224):
        for left in (0, 224, 448, 672):
            part = (slice(top, top + 224), slice(left, left + 224))
            expected[part] = crispseg.segment(image[part], network) == 0
    assert np.array_equal(found.shown.prediction, expected)
    assert found.iou == pytest.approx((expected & truth).sum() / (expected | truth).sum())


def test_the_shipped_model_finds_the_buildings_of_christchurch():
    assert find_buildings(crispseg.load("crisp_nano_aerial"), Patches()).iou > 0.8


def test_the_patches_are_small_and_credited():
    folder = Patches().folder
    assert sum(path.stat().st_size for path in folder.iterdir()) < 200 * 2**10
    origin = (folder / "README.md").read_text(encoding="utf-8")
    assert all(word in origin for word in ("LINZ", "CC BY 4.0", "H. Guo", "validation split", "never trained on"))


def test_the_command_prints_scores_and_where_to_look_and_may_be_repeated(scene, model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo_run, "HeldOut", lambda: scene)
    out = tmp_path / "demo"
    words = ["demo", "--out", str(out), "--model", str(model)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert all(f"| {name} |" in said for name in (*AERIAL.names, "mean"))
    assert f"page: {out / 'index.html'}" in said and str(out / "side_by_side.png") in said
    before = (out / "map.tif").read_bytes()
    (out / "map.tif").write_bytes(b"old")
    assert main([*words, "--existing", "replace"]) == 0
    assert (out / "map.tif").read_bytes() == before and {path.name for path in out.iterdir()} == FILES


def test_mistakes(scene, model, tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    for out in ("file", "file/demo"):
        with pytest.raises(UserError, match="cannot write|may not write"):
            demo_run.run_demo(tmp_path / out, model, scene)
    with pytest.raises(UserError, match="image.jpg is missing; install crispseg again"):
        demo_run.run_demo(tmp_path / "demo", model, HeldOut(tmp_path / "nowhere"))
    other = saved_model(tmp_path / "other", ("roof", "road"))
    with pytest.raises(UserError, match="has the classes building, .* knows roof, road"):
        demo_run.run_demo(tmp_path / "demo", other, scene)
    assert not (tmp_path / "demo").exists()
    assert main(["demo", "--out", str(tmp_path / "demo"), "-m", "no_such_model"]) == 1
    assert "no model folder no_such_model" in capsys.readouterr().err


def test_the_shipped_scene_is_whole_and_says_where_it_comes_from():
    scene = HeldOut()
    truth = scene.truth()
    assert scene.image().shape == (*truth.shape, 3) == (1931, 2391, 3)
    assert set(np.unique(truth)) == {0, 1, 2, 3, 4, 255}
    assert set(np.unique(truth[scene.close_up])) == set(np.unique(truth)) - {4}
    origin = (scene.folder / "README.md").read_text(encoding="utf-8")
    assert all(word in origin for word in ("CC0", "Humans in the Loop", "tiles 4, 5, 7 and 8", "never trained on"))
    assert sum(path.stat().st_size for path in scene.folder.iterdir()) < 2 * 2**20


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data sets are not on this machine")
def test_the_shipped_scene_is_tile_1():
    """Stitched again from its parts: the labels to the pixel, the image to within its compression."""
    scene = HeldOut()

    def stitched(kind, ending):
        rows = [
            [np.asarray(Image.open(SHARED / f"dubai/{kind}/tile1_part{3 * r + c}.{ending}")) for c in (1, 2, 3)]
            for r in range(3)
        ]
        return np.concatenate([np.concatenate(row, axis=1) for row in rows])

    assert np.array_equal(scene.truth(), encode(stitched("masks", "png")[..., :3], DUBAI, "tile 1")[0])
    assert np.abs(scene.image().astype(float) - stitched("images", "jpg")).mean() < 6


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data sets are not on this machine")
def test_the_patches_are_of_the_validation_split():
    rows = (SHARED / "nz_buildings" / "split.csv").read_text().split()
    names = [row.split(",")[0] for row in rows if row.endswith(",val")][:8]
    assert ", ".join(names) in (Patches().folder / "README.md").read_text(encoding="utf-8")
    masks = [np.asarray(Image.open(SHARED / "nz_buildings" / "masks" / f"{name}.png")) for name in names]
    stitched = np.concatenate([np.concatenate(masks[:4], axis=1), np.concatenate(masks[4:], axis=1)])
    assert np.array_equal(Patches().truth(), stitched)


def test_the_shipped_model_knows_a_part_of_the_scene(tmp_path):
    whole, part = HeldOut(), (slice(500, 1100), slice(900, 1700))
    scenes.save(tmp_path / "part" / "image.jpg", whole.image()[part])
    scenes.save(tmp_path / "part" / "truth.png", coloured(whole.truth()[part]))
    near = (slice(0, 200), slice(0, 200))
    demo = demo_run.run_demo(tmp_path / "demo", scene=HeldOut(tmp_path / "part", close_up=near))
    assert demo.scores.oa > 0.7 and demo.scores.iou[AERIAL.names.index("water")] > 0.7
    page = (tmp_path / "demo" / "index.html").read_text(encoding="utf-8")
    assert "What it cannot do" in page and "Potsdam" in page
    assert "Trained on satellite images of Dubai" in page and not re.search(r" #[0-9a-f]{10}\b", page)


def test_what_is_said_of_other_places_was_measured():
    measured = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "strangers.json").read_text())
    said = " ".join(page._CANNOT)

    def counts(place):
        found = measured["confusion"][place]
        return np.array(found["counts"]), found["rows"]

    for place in ("Potsdam at 0.1 m", "Potsdam at 0.3 m", "Christchurch, validation", "American towns, validation"):
        table, rows = counts(place)
        row = rows.index("building")
        iou = table[row, 0] / (table[row].sum() + table[:, 0].sum() - table[row, 0])
        assert re.search(rf"\b{100 * iou:.0f}\b", said), place
    dubai = counts("Dubai, tiles 1 and 3")[0]
    assert f"{100 * dubai[2, 2] / dubai[2].sum():.0f} % of the roads" in said and dubai[0, 1] > 0.5 * dubai[0].sum()
    found, rows = counts("American towns, validation")
    road = found[rows.index("road")]
    assert f"in American towns {100 * road[2] / road.sum():.0f} % of them" in said
    paved = [counts(f"Potsdam at {metres} m")[0][0] for metres in (0.1, 0.2, 0.3)]
    shares = [100 * row[2] / row.sum() for row in paved]
    assert f"{min(shares):.0f} to {max(shares):.0f} % is found as road" in said
