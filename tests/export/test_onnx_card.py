"""What Deepness' parser makes of the metadata, done by its rules: JSON values, keys counted from 0, x / 255 first."""

import dataclasses
import json

import numpy as np
import onnxruntime
import pytest

from crispseg.errors import UserError
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
