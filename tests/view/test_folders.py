"""Training runs and reports, served: as data, and in a browser."""

import base64
import hashlib
import json
import re

import numpy as np
import pytest
from PIL import Image

from crispseg.data.folder import open_folder
from crispseg.errors import UserError
from crispseg.evaluate import Settings, compare, evaluate, write_comparison, write_report
from crispseg.view.folders import folder_app
from crispseg.view.report import read_places
from crispseg.view.run import run_state, thinned
from crispseg.view.serving import Server
from tests.evaluate.toy import colour_model, labels, spoilt, write_folder
from tests.geo.rasters import write_raster
from tests.view.browser import CONTRAST, chromium, open_page, settle, wait_until
from tests.view.scenes import fetch, make


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """What a run leaves after 30 of 100 steps."""
    folder = tmp_path_factory.mktemp("runs") / "roofs-crisp_nano-1"
    (folder / "samples").mkdir(parents=True)
    (folder / "config.yaml").write_text(
        "data: {path: my_roofs}\nmodel: {name: crisp_nano}\nschedule: {steps: 100}\n", encoding="utf-8"
    )
    lines = [json.dumps({"step": s, "train/loss": 1 / s}) for s in range(1, 31)]
    lines += [json.dumps({"step": 30, "val/mIoU": 0.61, "val/IoU/roof": 0.5, "val/IoU/<b>road": None})]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 31, "tr', encoding="utf-8")  # cut short
    for name, step in (("a-1", 10), ("a-1", 20), ("b", 20)):
        Image.new("RGB", (90, 30), (step, 0, 0)).save(folder / "samples" / f"{name}-{step:06d}.png")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of two windows each, of which the model gets some wrong."""
    pairs = {}
    for number in range(2):
        true = labels(number, (80, 40)).repeat(8, 0).repeat(8, 1)
        pairs[f"site{number}"] = (spoilt(true, number), true)
    return open_folder(write_folder(tmp_path_factory.mktemp("data") / "meadows", pairs))


@pytest.fixture(scope="module")
def report(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "report"
    write_report(evaluate(colour_model(), folder, settings=Settings(tile=0, worst=3)), out)
    return out


@pytest.fixture
def served():
    stops = []

    def serve(path):
        server = Server(folder_app(path))
        stops.append(server.start())
        return server.address

    yield serve
    for stop in stops:
        stop()


def test_a_run_is_told_as_far_as_it_is(run):
    state = run_state(run)
    assert (state["done"], state["steps"], state["finished"], state["model"]) == (30, 100, False, "crisp_nano")
    assert state["curves"]["loss"] == [(s, 1 / s) for s in range(1, 31)] and state["curves"]["mIoU"] == [(30, 0.61)]
    assert state["classes"] == {"roof": 0.5, "<b>road": None}
    assert state["samples"] == [{"name": "a-1", "step": 20}, {"name": "b", "step": 20}]


def test_a_long_curve_is_thinned_by_means():
    curve = [(s, float(s % 2)) for s in range(10_001)]
    few = thinned(curve)
    assert len(few) <= 601 and few[-1] == curve[-1]
    assert all(0.4 < value < 0.6 for _, value in few[:-2])


def test_a_run_grows_while_it_is_watched(run, served):
    address = served(run)
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as log:
        before = json.loads(fetch(f"{address}run.json")[2])["done"]
        log.write('ain/loss": 0.02}\n')
    assert (before, json.loads(fetch(f"{address}run.json")[2])["done"]) == (30, 31)
    assert fetch(f"{address}samples/0")[2] == (run / "samples" / "a-1-000020.png").read_bytes()
    assert fetch(f"{address}samples/7")[0] == 404 and fetch(f"{address}config.yaml")[0] == 404


def test_a_served_report_allows_its_own_script_and_no_other(report, served):
    address = served(report)
    status, headers, body = fetch(address)
    text, policy = body.decode(), headers["content-security-policy"]
    assert status == 200 and "unsafe" not in policy and "http-equiv" not in text
    for inside in re.findall(r"<script>(.*?)</script>", text, re.DOTALL):
        assert base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode() in policy
    assert fetch(f"{address}scores.json")[0] == 200
    for path in ("../report/scores.json", "..%2f..%2fdata", "maps", "missing.json", "places.json/../../x"):
        assert fetch(f"{address}{path}")[0] in (403, 404), path
    places = json.loads(fetch(f"{address}places.json")[2])["places"]
    assert [p["place"] for p in sorted(places, key=lambda p: p["place"])] == [0, 1, 2]


def test_a_demonstrations_folder_is_shown_as_its_map(tmp_path, served):
    made = make(tmp_path, crs=False)
    address = served(tmp_path)
    about = re.search(r'id="about" type="application/json">(.*?)</script>', fetch(address)[2].decode(), re.DOTALL)
    layers = {theme["id"] for theme in json.loads(about[1])["themes"]}
    assert made and layers == {"a", "confidence"}  # of the names that `crisp demo` gives, these are there


def test_pages_in_a_browser(run, report, folder, served, tmp_path):
    """A run, a report with a link onto the map, and a comparison: dark, light, narrow, without an error."""
    other = evaluate(colour_model(confidence=0.7), folder, settings=Settings(tile=0, worst=1))
    first = evaluate(colour_model(), folder, settings=Settings(tile=0, worst=1))
    comparison = write_comparison(compare(first, other, resamples=50), tmp_path / "both")
    with chromium() as browser:
        page = open_page(browser, served(run), theme="dark")
        wait_until(page, "document.documentElement.dataset.ready === 'yes'")
        assert "roof" in page.locator("#classes").inner_text() and "<b>road" in page.locator("#classes").inner_text()
        assert page.locator("#loss polyline").count() == 1
        wait_until(page, "[...document.images].every((i) => i.complete && i.naturalWidth > 0)")
        _looks_right(page)
        page.close()

        for address in ((report / "report.html").as_uri(), comparison.as_uri()):
            page = open_page(browser, address, 360, 700)
            wait_until(page, "[...document.images].every((i) => i.complete && i.naturalWidth > 0)")
            _looks_right(page)
            page.close()

        page = open_page(browser, served(report))
        wait_until(page, "document.querySelectorAll('a[data-place]:not([hidden])').length === 3")
        place = json.loads((report / "places.json").read_text())["places"][1]
        page.locator('a[data-place="1"]').click()
        settle(page)
        assert page.locator("h1").inner_text() == place["image"]
        middle = page.evaluate("(() => { const c = crisp.panes[1].map.getCenter(); return [c.lng, c.lat]; })()")
        size = 512 * 2**17 / 360  # pixels per degree near the corner of the map
        expected = (place["left"] + place["width"] / 2, place["top"] + place["height"] / 2)
        assert (middle[0] * size, -middle[1] * size) == pytest.approx(expected, abs=1)
        assert np.isfinite(middle).all() and page.errors == []
        page.close()


def _looks_right(page):
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        ratio, text = page.evaluate(CONTRAST)
        assert ratio >= 4.5, (theme, text)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.errors == []


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ([], "must be a mapping"),
        ({"images": [], "places": [{"image": 3}]}, "lacks"),
        (
            {"images": [{"name": "a", "file": "a", "map": "../../a.tif", "truth": "b"}], "places": []},
            "outside the report",
        ),
    ],
)
def test_places_of_a_damaged_report(listed, message, tmp_path):
    (tmp_path / "places.json").write_text(json.dumps(listed))
    with pytest.raises(UserError, match=message):
        read_places(tmp_path)


def test_an_image_whose_name_no_system_takes_is_not_there(tmp_path):
    image = {"name": "a", "file": "A" * 5000, "map": "a.tif", "truth": "b.tif"}
    for name in ("a.tif", "b.tif"):
        write_raster(tmp_path / name, np.zeros((4, 4), np.uint8))
    (tmp_path / "places.json").write_text(json.dumps({"images": [image], "places": []}))
    assert read_places(tmp_path)[0][0].files.image is None


def test_a_config_that_is_none_is_told(tmp_path):
    """Found by the fuzz campaign."""
    (tmp_path / "config.yaml").write_text("model: [1]\n")
    with pytest.raises(UserError, match="model"):
        run_state(tmp_path)
