"""The map's page in a real browser."""

import json
import os

import numpy as np
import pytest

from crispseg.geo.vectorize import vectorize_map
from crispseg.view.app import make_app
from crispseg.view.save import save_page
from crispseg.view.scene import Files, Scene
from crispseg.view.serving import Server
from tests.view.browser import CONTRAST, chromium, open_page, settle, wait_until
from tests.view.scenes import HEIGHT, NAMES, WIDTH, make


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make(tmp_path_factory.mktemp("scene"))


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    return make(tmp_path_factory.mktemp("flat"), crs=False)


@pytest.fixture(scope="module")
def served(made, flat, browser):
    """Scene 0: all layers, on the ground. Scene 1: two maps without a reference system."""
    folder = os.path.dirname(made.files.maps[0])
    polygons = os.path.join(folder, "map.gpkg")
    vectorize_map(made.files.maps[0], polygons, min_area=15)
    one = Scene(Files(made.files.maps, made.files.image, made.files.confidence, made.files.truth, polygons))
    other = os.path.join(os.path.dirname(flat.files.maps[0]), "other.tif")
    server = Server(make_app([one, Scene(Files((flat.files.maps[0], other), flat.files.image))]))
    stop = server.start()
    yield server
    stop()


@pytest.fixture(scope="module")
def page(served, browser):
    page = open_page(browser, served.address)
    settle(page)
    yield page
    assert page.errors == []
    page.close()


def test_tiles_arrive_and_the_legend_is_the_maps_histogram(page, made):
    tiles = [status for status, url in page.asked if "/tiles/" in url]
    assert tiles and set(tiles) == {200}
    pixels = np.bincount(made.classes.ravel(), minlength=256)[:3]
    rows = page.locator("#classes li")
    assert [int(rows.nth(i).get_attribute("data-pixels")) for i in range(3)] == pixels.tolist()
    shares = [f"{100 * n / pixels.sum():.2f} %" for n in pixels]
    assert page.locator("#classes .share").all_inner_texts() == shares
    assert page.locator("#classes .name").all_inner_texts() == list(NAMES)  # the tag is text
    assert page.evaluate("crisp.polygonsShown") > 10


def click_at(page, row, column, made):
    """Go near to a pixel, click on it as a person would, and read the answer."""
    scene = Scene(made.files)
    at = list(scene.reference.to_degrees([(column + 0.5, row + 0.5)])[0])
    page.keyboard.press("Escape")
    page.evaluate(f"void crisp.panes[1].map.jumpTo({{ center: {at}, zoom: crisp.about.zoom + 2 }})")
    page.evaluate("crisp.cut(10)")  # the divider is not in the way
    box = page.locator("#right").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#answer:not([hidden])")
    found = json.loads(page.locator("#answer").get_attribute("data-answer"))
    page.keyboard.press("Escape")
    return found


def test_a_click_gives_the_class_at_that_pixel(page, made):
    for row, column in ((150, 300), (70, 110), (251, 399)):
        answer = click_at(page, row, column, made)
        assert (answer["row"], answer["column"]) == (row, column)
        assert answer["classes"]["a"] == NAMES[made.classes[row, column]]
        assert answer["confidence"] == pytest.approx(made.confidence[row, column] / 254)


def test_the_divider_moves_by_mouse_and_by_keys(page):
    page.evaluate("crisp.cut(50)")
    box = page.locator("#divider").bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] - 150, box["y"] + 50)
    page.mouse.up()
    moved = page.locator("#divider").bounding_box()["x"]
    assert moved == pytest.approx(box["x"] - 152, abs=3)
    clip = page.evaluate("getComputedStyle(document.getElementById('right')).clipPath")
    assert clip.startswith("inset(")
    page.locator("#divider").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#divider").bounding_box()["x"] > moved
    page.keyboard.press("End")
    assert page.locator("#divider").get_attribute("aria-valuenow") == "100"
    page.evaluate("crisp.cut(50)")


def test_keys(page):
    page.locator("h1").click()
    page.keyboard.press("2")
    assert page.evaluate("[...crisp.off]") == [1]
    settle(page)
    assert any("off=1" in url for _, url in page.asked)
    page.keyboard.press("0")
    assert page.evaluate("crisp.off.size") == 0
    before = page.evaluate("crisp.opacity")
    page.keyboard.press(",")
    assert page.evaluate("crisp.opacity") == pytest.approx(before - 0.1)
    page.keyboard.press(".")
    page.keyboard.press("v")
    assert page.locator("#stage").get_attribute("data-layout") == "side"
    page.keyboard.press("v")
    page.keyboard.press("v")
    assert page.locator("#stage").get_attribute("data-layout") == "swipe"
    page.keyboard.press("t")
    settle(page)
    assert page.locator("#right-name").inner_text() == "Truth"
    page.locator("#right-theme").select_option("confidence")
    settle(page)
    assert page.locator("#ramp-section").is_visible()
    page.locator("#right-theme").select_option("errors")
    settle(page)
    page.locator("#right-theme").select_option("a")
    page.locator("h1").click()
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()
    page.keyboard.press("l")
    assert not page.locator("#panel").is_visible()
    page.keyboard.press("l")
    zoom = page.evaluate("crisp.panes[1].map.getZoom()")
    page.keyboard.press("+")
    wait_until(page, f"crisp.panes[1].map.getZoom() > {zoom} + 0.9")
    left, right = page.evaluate("crisp.panes.map((pane) => pane.map.getZoom())")
    assert left == right
    page.keyboard.press("h")


def test_marked_windows_are_exported_with_their_labels(page, made, tmp_path):
    import pyogrio

    page.locator("#mark").click()
    box = page.locator("#right").bounding_box()
    middle = (box["x"] + 0.7 * box["width"], box["y"] + box["height"] / 2)
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] + 60, middle[1] + 50, steps=3)
    page.mouse.up()
    assert page.locator("#marks li").count() == 1
    with page.expect_download() as waiting:
        page.locator("#export").click()
    path = tmp_path / "windows.gpkg"
    waiting.value.save_as(path)
    page.locator("#mark").click()
    page.locator("#forget").click()
    assert [name for name, _ in pyogrio.list_layers(path)] == ["labels", "windows", "layer_styles"]
    meta, _, _, fields = pyogrio.raw.read(path, layer="windows")
    columns = dict(zip(meta["fields"], fields, strict=True))
    top, left, height, width = (int(columns[name][0]) for name in ("top", "left", "height", "width"))
    meta, _, shapes, fields = pyogrio.raw.read(path, layer="labels")
    labels = dict(zip(meta["fields"], fields, strict=True))
    import shapely

    areas = shapely.area(shapely.from_wkb(shapes))
    part = made.classes[top : top + height, left : left + width]
    for k in range(3):
        assert areas[labels["class_id"] == k].sum() == pytest.approx(0.25 * (part == k).sum())


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast_passes_wcag_aa(page, theme):
    page.emulate_media(color_scheme=theme)
    ratio, text = page.evaluate(CONTRAST)
    assert ratio >= 4.5, text
    page.locator("#theme").click()  # and the switch goes to the other
    ratio, text = page.evaluate(CONTRAST)
    assert ratio >= 4.5, text
    page.locator("#theme").click()


def test_two_maps_side_by_side_without_a_reference_system_on_a_phone(served, browser, flat):
    page = open_page(browser, f"{served.address}scenes/1/", 360, 740, "dark")
    settle(page)
    assert page.locator("#stage").get_attribute("data-layout") == "side"
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.locator("#stage").bounding_box()["height"] > 200
    assert page.locator("#classes li").first.is_visible()
    page.locator("#right-theme").select_option("difference")
    settle(page)
    answer = click_at(page, 100, 200, flat)
    assert (answer["row"], answer["column"]) == (100, 200)
    assert set(answer["classes"]) == {"a", "b"}
    assert page.locator("#scale").inner_text().endswith("px")
    ratio, text = page.evaluate(CONTRAST)
    assert ratio >= 4.5, text
    assert page.errors == []
    page.close()


def test_the_saved_page_needs_nothing_else(browser, made, tmp_path):
    target = tmp_path / "page.html"
    save_page(Scene(made.files), target)
    page = open_page(browser, target.as_uri())
    settle(page)
    pixels = np.bincount(made.classes.ravel(), minlength=256)[:3]
    assert [int(li.get_attribute("data-pixels")) for li in page.locator("#classes li").all()] == pixels.tolist()
    for row, column in ((150, 300), (251, 399)):
        answer = click_at(page, row, column, made)
        assert (answer["row"], answer["column"]) == (row, column)
        assert answer["classes"] == {"a": NAMES[made.classes[row, column]], "truth": NAMES[made.truth[row, column]]}
        assert answer["confidence"] == pytest.approx(made.confidence[row, column] / 254)
    page.keyboard.press("1")
    page.locator("#right-theme").select_option("errors")
    settle(page)
    assert [url for _, url in page.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.errors == []
    page.close()


def test_a_file_that_goes_away_is_a_sentence_in_the_page(browser, tmp_path):
    gone = make(tmp_path, crs=False)
    server = Server(make_app([Scene(gone.files)]))
    stop = server.start()
    try:
        page = open_page(browser, server.address)
        settle(page)
        os.rename(gone.files.maps[0], tmp_path / "away.tif")
        page.locator("h1").click()
        page.keyboard.press("1")
        page.wait_for_selector("#problem:not([hidden])")
        assert "map.tif is gone" in page.locator("#problem").inner_text()
        page.close()
    finally:
        stop()


def test_sizes_are_those_of_the_file(page):
    assert page.evaluate("crisp.about.size") == [WIDTH, HEIGHT]
