"""`crisp view` as a user types it, likely mistakes included."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from crispseg.cli import view
from crispseg.cli.main import main
from crispseg.view.save import LARGEST
from tests.geo.rasters import UTM, write_raster
from tests.view.scenes import fetch, make


def test_prints_its_address_answers_and_ends_with_ctrl_c(tmp_path):
    made = make(tmp_path)
    command = [sys.executable, "-m", "crispseg.cli.main", "view", *made.files.maps, made.files.image, "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        assert fetch(address)[0] == 200
        assert json.loads(fetch(f"{address}scenes/0/legend.json")[2])["unit"] == "m2"
    finally:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0 and out == "" and "Traceback" not in err
    assert sorted(os.listdir(tmp_path)) == ["image.tif", "map.tif", "map_confidence.tif", "other.tif", "truth.tif"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["none.tif"], "there is no file none.tif"),
        (["image.tif"], "is no class map: it has 3 bands"),
        (["text.txt"], "cannot be read as a raster"),
        (["map.tif", "image.tif", "image2.tif"], "one image lies under the map, not 2"),
        (["map.tif", "other.tif", "third.tif"], "two maps can be compared, not 3"),
        (["map.tif", "--confidence", "image.tif"], "is no confidence map: it has 3 bands"),
        (["map.tif", "--polygons", "text.txt"], "cannot be read as polygons"),
        (["map.tif", "--port", "99999"], "a port is a number from 0"),
        (["map.tif", "--save", "page.png"], "name it .html"),
        (["folder"], "is neither a training run"),
        (["folder", "--truth", "truth.tif"], "--truth belongs to a map"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, monkeypatch, capsys, words, sentence):
    monkeypatch.chdir(tmp_path)
    made = make(tmp_path)
    (tmp_path / "text.txt").write_text("words")
    (tmp_path / "folder").mkdir()
    os.link("image.tif", "image2.tif")
    os.link("other.tif", "third.tif")
    assert main(["view", *words, "--no-open"]) == 1
    said = capsys.readouterr().err
    assert sentence in said and "Traceback" not in said
    assert made


def test_a_taken_port_is_told(tmp_path, capsys):
    made = make(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["view", *made.files.maps, "--no-open", "--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(view.importlib.util, "find_spec", lambda name: None)
    assert main(["view", "map.tif"]) == 1
    assert "pip install 'crispseg[view]'" in capsys.readouterr().err


def test_a_scene_too_large_for_a_saved_page_is_refused(tmp_path, capsys):
    import numpy as np

    path = write_raster(tmp_path / "a wide one.tif", np.zeros((2, LARGEST + 1), np.uint8))
    assert main(["view", path, "--save", str(tmp_path / "page.html")]) == 1
    said = capsys.readouterr().err
    assert f"{LARGEST} x {LARGEST} at most" in said and f"{LARGEST} {LARGEST} '{path}' part.tif" in said
    assert not (tmp_path / "page.html").exists()


def test_a_saved_page_compares_only_maps_of_one_grid(tmp_path):
    import rasterio

    made = make(tmp_path)
    moved = {**UTM, "transform": rasterio.Affine(0.6, 0, 400_000, 0, -0.6, 5_000_000)}
    truth = write_raster(tmp_path / "moved.tif", made.truth[:500, :700], **moved)
    for labels, compared in ((made.files.truth, True), (truth, False)):
        page = tmp_path / "page.html"
        assert main(["view", *made.files.maps, "--truth", labels, "--save", str(page), "-q"]) == 0
        text = page.read_text()
        about = json.loads(text.partition('type="application/json">')[2].partition("</script>")[0])
        assert ("errors" in [theme["id"] for theme in about["themes"]]) is compared
        assert ("lies on another grid" in text) is not compared
        page.unlink()
