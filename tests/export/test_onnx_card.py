"""What Deepness' parser makes of the metadata, done by its rules: JSON values, keys counted from 0, x / 255 first."""

import dataclasses
import json

import numpy as np
import onnxruntime
import pytest

from crispseg.cli.main import main
from crispseg.errors import UserError
from crispseg.evaluate.opening import Opened
from crispseg.models.onnx_card import KEY, card_of, read_metadata, write_metadata
from tests.export.conftest import CARD, small_model


@pytest.fixture(scope="module")
def entries(onnx_file):
    session = onnxruntime.InferenceSession(onnx_file, providers=["CPUExecutionProvider"])
    return session.get_modelmeta().custom_metadata_map


def test_deepness_finds_its_keys(entries):
    assert str(json.loads(entries["model_type"])).capitalize() == "Segmentor"
    names = sorted(json.loads(entries["class_names"]).items(), key=lambda item: int(item[0]))
    assert [int(key) for key, _ in names] == [0, 1, 2] and tuple(name for _, name in names) == CARD.classes
    assert float(json.loads(entries["resolution"])) == 30.0
    assert int(json.loads(entries["tile_size"])) == int(json.loads(entries["tiles_size"])) == 512
    assert 0 < int(json.loads(entries["tiles_overlap"])) < 100


def test_deepness_preprocessing_leaves_pixels_as_they_are(entries):
    pixels = np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 16, 16, 3)
    mean, std = (
        np.array([float(x) for x in json.loads(entries[f"standardization_{key}"])], dtype=np.float32)
        for key in ("mean", "std")
    )
    reaches_the_graph = (np.float32(pixels * 1.0 / 255.0) - mean) / std
    np.testing.assert_allclose(reaches_the_graph, pixels, rtol=3e-7)


def test_the_card_comes_back(entries):
    card = read_metadata(entries, "model.onnx")
    assert dataclasses.replace(card, info=CARD) == card and card.info == CARD
    assert (card.num_classes, card.in_channels, card.size, card.output) == (3, 3, (None, None, None), "logits")


def test_a_range_of_resolutions_has_its_middle_told():
    """Without the key, Deepness shows the model pixels of 3 cm."""
    entries = write_metadata(card_of(small_model(resolution=None, resolutions=(0.1, 1.6))))
    assert float(json.loads(entries["resolution"])) == pytest.approx(40.0)
    assert "resolution" not in write_metadata(card_of(small_model(resolution=None)))


@pytest.mark.parametrize(
    ("words", "facts", "said"),
    [
        (["x.pt2"], {}, "ends in .onnx"),
        (["x.onnx", "--size", "96", "64"], {}, "--size 96 96"),
        (["x.onnx", "--output", "argmax"], {}, "leave out --output argmax"),
        (["x.onnx", "--output", "logits"], {}, "leave out --output logits"),
        (["x.onnx"], {"dtype": "uint16"}, "trained on uint16 pixels"),
    ],
)
def test_what_deepness_cannot_run_is_not_made_for_it(tmp_path, monkeypatch, capsys, words, facts, said):
    opened = Opened(small_model(**facts), "small", None)
    monkeypatch.setattr("crispseg.evaluate.opening.open_model", lambda _: opened)
    monkeypatch.chdir(tmp_path)
    assert main(["export", "small", "--deepness", "-o", *words]) == 1
    assert said in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_what_deepness_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("crispseg.evaluate.opening.open_model", lambda _: Opened(small_model(), "small", None))
    assert main(["export", "small", "--deepness", "-o", str(tmp_path / "x.onnx"), "--size", "64", "64", "-q"]) == 0
    session = onnxruntime.InferenceSession(tmp_path / "x.onnx")
    assert [end.shape for end in (*session.get_inputs(), *session.get_outputs())] == [[1, 3, 64, 64], [1, 3, 64, 64]]
    assert session.get_outputs()[0].name == "probabilities"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda e: e.pop(KEY), "not written by `crisp export`"),
        (lambda e: e.update({KEY: "{"}), "is damaged"),
        (lambda e: e.update({KEY: '{"format": 99}'}), "upgrade"),
        (lambda e: e.update({KEY: "[1]"}), "is damaged"),
    ],
)
def test_foreign_and_damaged_metadata_are_told(change, said):
    entries = write_metadata(card_of(small_model()))
    change(entries)
    with pytest.raises(UserError, match=said):
        read_metadata(entries, "model.onnx")
