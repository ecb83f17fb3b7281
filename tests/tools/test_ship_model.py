"""From a training run to a shipped model's folder."""

import dataclasses
import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import crispseg
from crispseg.data.colours import EXPECTED
from crispseg.data.folder import open_folder
from crispseg.data.known import DUBAI
from crispseg.data.protocol import get_protocol
from crispseg.errors import UserError
from crispseg.files import write_json
from crispseg.models.base import ModelInfo
from crispseg.train.checkpoint import save_checkpoint
from crispseg.train.config import config_from, write_config
from tests.fakedata import scenes
from tests.models.test_registered import SHRINK_CRISP

TILES = ("tile1", "tile3", "tile4", "tile5", "tile7", "tile8")
PROTOCOL = get_protocol("dubai/own5")


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    return importlib.import_module("ship_model")


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    for tile in TILES:
        for part in (1, 2):
            image, ids = scenes.scene(rng, (40, 48), classes=5)
            scenes.save(tmp_path / "data" / "images" / f"{tile}_part{part}.png", image)
            scenes.save(tmp_path / "data" / "masks" / f"{tile}_part{part}.png", scenes.paint(ids, DUBAI.colours))
    return tmp_path / "data"


@pytest.fixture
def run(tmp_path, data):
    """A finished run's folder: best/ of step 10, and last.pt of step 20 with averaged weights."""
    place = tmp_path / "runs" / "one"
    best = a_model()
    best.save(place / "best")
    settings = {"data": {"path": str(data), "protocol": PROTOCOL.name}, "out": str(place), "ema": 0.9, "crop": 32}
    write_config(config_from(settings), place / "config.yaml")
    write_json(place / "result.json", {"best_step": 10, "steps": 20, "seconds": 90.0})
    machine = {"gpu": None, "threads": 1, "packages": {"torch": "2.x"}, "crispseg": "0.1.0"}
    write_json(place / "environment.json", machine | {"command": ["/secret/place"]})
    last = a_model()
    average = [torch.randn_like(parameter) * 0.1 for parameter in last.parameters()]
    save_checkpoint(place / "last.pt", {"model": last.state_dict(), "average": {"average": average}})
    return place


def a_model():
    model = crispseg.create_model("crisp_nano", num_classes=5, **SHRINK_CRISP)
    model.info = ModelInfo(
        PROTOCOL.classes,
        PROTOCOL.palette,
        ("red", "green", "blue"),
        (120.0,) * 3,
        (60.0,) * 3,
        training_data=f"{PROTOCOL.name} #{PROTOCOL.hash}, train split (8 images)",
    )
    return model


def ship(tool, run, data, tmp_path, *more):
    words = [
        str(run),
        "--data",
        str(data),
        "--name",
        "toy_dubai",
        "--out",
        str(tmp_path / "shipped"),
        "--device",
        "cpu",
    ]
    return tool.main([*words, *more])


def test_the_folder_holds_half_weights_card_and_pictures(tool, run, data, tmp_path):
    assert ship(tool, run / "best", data, tmp_path, "--note", "Found by trying.") == 0
    place = tmp_path / "shipped" / "toy_dubai"
    stored = load_file(place / "model.safetensors")
    original = load_file(run / "best" / "model.safetensors")
    for name, tensor in original.items():
        assert torch.equal(stored[name], tensor.half() if tensor.is_floating_point() else tensor)
    pictures = sorted(path.name for path in place.glob("*.jpg"))
    assert pictures == ["failure_1.jpg", "failure_2.jpg", "failure_3.jpg", "failure_4.jpg"]
    card = (place / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"!\[[^]]*\]\(([^)]+)\)", card) == pictures
    for fact in ("CC0", "Apache-2.0", PROTOCOL.hash, "Found by trying.", "step 10 of 20", "ema: 0.9", "BF@3px"):
        assert fact in card
    assert all(f"| {name} |" in card for name in PROTOCOL.classes)
    assert str(tmp_path) not in card and "/secret" not in card
    info = crispseg.load(place).info
    assert "CC0" in info.licence and f"#{PROTOCOL.hash}," in info.training_data and "Dubai" in info.training_data
    assert set(info.scores) >= {"protocol", "mIoU", "BF@3px", "IoU water"}


def test_the_scores_are_those_of_the_stored_weights(tool, run, data, tmp_path):
    from crispseg.data import open_folder
    from crispseg.evaluate import evaluate

    assert ship(tool, run, data, tmp_path) == 0
    model = crispseg.load(tmp_path / "shipped" / "toy_dubai")
    again = evaluate(model, open_folder(data, protocol=PROTOCOL.name), "val")
    assert model.info.scores["mIoU"] == pytest.approx(again.scores.miou)
    assert model.info.scores["protocol"] == again.conditions.line


def test_last_weights_are_the_averaged_ones_and_replace_an_older_shipment(tool, run, data, tmp_path):
    old = tmp_path / "shipped" / "toy_dubai"
    old.mkdir(parents=True)
    (old / "failure_9.jpg").write_text("old")
    assert ship(tool, run, data, tmp_path, "--weights", "last") == 0
    assert not (old / "failure_9.jpg").exists()
    average = torch.load(run / "last.pt", weights_only=True)["average"]["average"]
    for parameter, expected in zip(crispseg.load(old).parameters(), average, strict=True):
        assert torch.equal(parameter, expected.half().float())
    assert "step 20 of 20" in (old / "README.md").read_text()


def refused(tool, capsys, *words):
    assert ship(tool, *words) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert not (words[2] / "shipped" / "toy_dubai").exists()
    return said


def test_what_must_not_be_shipped(tool, run, data, tmp_path, capsys, monkeypatch):
    assert "0.1 are allowed" in refused(tool, capsys, run, data, tmp_path, "--largest", "104858")
    monkeypatch.setattr(tool, "TOLERANCE", -1.0)
    assert "half precision changes mIoU from" in refused(tool, capsys, run, data, tmp_path)
    monkeypatch.setattr(importlib.import_module("model_card"), "DATA", {})
    assert "nothing trained on 'dubai' is shipped" in refused(tool, capsys, run, data, tmp_path)


def test_a_model_without_its_run_or_of_another_protocol(tool, run, data, tmp_path, capsys):
    path = run / "best" / "config.json"
    config = json.loads(path.read_text())
    config["info"]["training_data"] = "elsewhere"
    path.write_text(json.dumps(config))
    assert "was trained on elsewhere, not under dubai/own5" in refused(tool, capsys, run, data, tmp_path)
    a_model().save(tmp_path / "alone")
    assert "does not lie in a training run" in refused(tool, capsys, tmp_path / "alone", data, tmp_path)


def test_mistakes_are_counted_as_by_hand(tool):
    card = importlib.import_module("model_card")
    truth = np.array([[0, 0, 1, 255], [2, 2, 2, 1]], np.uint8)
    found = np.array([[1, 1, 1, 0], [2, 0, 2, 2]], np.uint8)
    window = dataclasses.replace(_blank_window(), truth=truth, prediction=found)
    assert card.main_mistake(window, ("a", "b", "c")) == "mostly a taken for b"


def _blank_window():
    from crispseg.evaluate.worst import WorstWindow

    empty = np.zeros((1, 1), np.uint8)
    return WorstWindow(0, "x", 0, 0, 0, 0, 0.0, empty, empty, empty)


def test_buildings_elsewhere_and_the_colours_people_expect(tool, run, data, tmp_path):
    """Another set knows buildings alone; its score stands in the card beside the first set's."""
    rng = np.random.default_rng(1)
    other = tmp_path / "houses"
    for number in range(3):
        image, ids = scenes.scene(rng, (40, 48), classes=2)
        scenes.save(other / "images" / f"house{number}.png", image)
        scenes.save(other / "masks" / f"house{number}.png", ids)
    (other / "classes.csv").write_text("name,id\nbackground,0\nbuilding,1\n")
    words = ("--buildings", str(other), "--resolutions", "0.1", "1.0", "--strangers", "Rivers are taken for woods.")
    assert ship(tool, run, data, tmp_path, *words) == 0
    folder = tmp_path / "shipped" / "toy_dubai"
    model = crispseg.load(folder)
    assert model.info.resolutions == (0.1, 1.0)
    assert model.info.palette[model.info.classes.index("water")] == EXPECTED["water"]
    opened = open_folder(other)
    assert model.info.scores["IoU building, houses x 1"] == pytest.approx(tool.building_iou(model, opened, 1.0))
    found, truth = [], []
    for record in opened.records("val"):
        found.append(crispseg.segment(opened.read_image(record), model).ravel() == model.info.classes.index("building"))
        truth.append(opened.read_mask(record).ravel() == 1)
    found, truth = np.concatenate(found), np.concatenate(truth)
    expected = (found & truth).sum() / max((found | truth).sum(), 1)
    assert model.info.scores["IoU building, houses x 1"] == pytest.approx(expected)
    card = (folder / "README.md").read_text()
    assert card.count("### Elsewhere") == 1 and "seen at 0.5 of their size" in card
    assert "\n\nRivers are taken for woods.\n" in card


def test_every_set_of_several_must_be_known(tool):
    facts = tool.facts_of("dubai/own5 #1, train split (3 images); scenes/own3 #2, train split (9 images)")
    assert "Dubai" in facts.origin and "UC Merced" in facts.origin and facts.chosen_on
    with pytest.raises(UserError, match="nothing trained on 'potsdam_fragment' is shipped"):
        tool.facts_of("dubai/own5 #1, train split (3 images); potsdam_fragment/own6 #2, train split (9 images)")
