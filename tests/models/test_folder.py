import dataclasses
import json

import numpy as np
import pytest
import torch

import crispseg
from crispseg.errors import UserError
from crispseg.models.base import ModelInfo
from tests.models.test_registered import SHRINK_CRISP

INFO = ModelInfo(
    classes=("road", "tree"),
    palette=((255, 255, 255), (0, 255, 0)),
    bands=("red", "green", "blue"),
    mean=(120.0, 110.5, 100.0),
    std=(50.0, 51.0, 52.0),
    resolution=0.09,
    training_data="three fields",
    licence="CC0",
    scores={"mIoU": 0.5123, "protocol": "own/2"},
    notes="Confuses hedges with trees.",
)


@pytest.fixture
def folder(tmp_path):
    model = crispseg.create_model("crisp_nano", num_classes=2, **SHRINK_CRISP)
    model.info = INFO
    model.save(tmp_path / "model")
    return tmp_path / "model"


def test_what_is_no_model_is_told_by_what_it_is(tmp_path):
    (tmp_path / "data" / "images").mkdir(parents=True)
    for name, said in (("data", "; it holds images: .* the model comes first$"), ("photo.png", "has no config.json$")):
        (tmp_path / "photo.png").touch()
        with pytest.raises(UserError, match=f"{name} is not a model folder: .*{said}"):
            crispseg.load(tmp_path / name)


def test_card_and_info_come_back(folder):
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert crispseg.load(folder).info == INFO
    card = (folder / "README.md").read_text()
    for fact in (
        "road, tree",
        "red, green, blue",
        "120, 110.5, 100",
        "three fields",
        "CC0",
        "51.23 %",
        "0.09 m",
        "hedges",
    ):
        assert fact in card


def test_a_card_may_hold_numpys_numbers_and_is_checked_before_anything_is_written(folder, tmp_path):
    sizes = {
        name: np.array(value) if isinstance(value, tuple) else np.int64(value) for name, value in SHRINK_CRISP.items()
    }
    model = crispseg.create_model("crisp_nano", np.int64(2), np.uint8(3), **sizes)
    mean, std = np.array(INFO.mean), [np.float32(value) for value in INFO.std]
    scores = {**INFO.scores, "mIoU": torch.tensor(0.5123, dtype=torch.float64)}
    model.info = dataclasses.replace(INFO, mean=mean, std=std, classes=[*INFO.classes], scores=scores)
    model.save(folder)
    assert crispseg.load(folder).info == INFO
    model.info = dataclasses.replace(INFO, mean=5)
    with pytest.raises(UserError, match=r"info\.mean must be a list, not 5"):
        model.save(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_loaded_model_says_what_it_was_loaded_from(folder):
    assert crispseg.load(folder).origin == f"the model in {folder}"
    assert crispseg.load("crisp_nano_aerial").origin == "the trained model crisp_nano_aerial"


def change(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_newer_format(folder):
    change(folder, format=99, crispseg="7.0.0")
    with pytest.raises(UserError, match=r"saved by crispseg 7.0.0 in a newer format \(99; .*upgrade crispseg"):
        crispseg.load(folder)


def test_wrong_class_count(folder):
    with pytest.raises(UserError, match="has 2 classes, not 6"):
        crispseg.load(folder, num_classes=6)
    change(folder, num_classes=4)
    with pytest.raises(UserError, match="do not belong together: .*4 classes and 3 bands make it"):
        crispseg.load(folder)


@pytest.mark.parametrize("keep", [0, 5, 1000])
def test_truncated_weights(folder, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match="damaged or cut short"):
        crispseg.load(folder)


def test_not_a_model_folder(folder, tmp_path):
    with pytest.raises(UserError, match="is not a model folder"):
        crispseg.load(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no weight file"):
        crispseg.load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        crispseg.load(folder)


def test_weights_of_another_model(folder, tmp_path):
    other = crispseg.create_model("crisp_nano", num_classes=2, neck="concat", **SHRINK_CRISP)
    other.save(tmp_path / "other")
    (tmp_path / "other" / "model.safetensors").replace(folder / "model.safetensors")
    with pytest.raises(UserError, match=r"do not belong together: \d+ tensors are missing"):
        crispseg.load(folder)


def test_saving_over_a_file_and_leaving_nothing_behind(folder, tmp_path):
    model = crispseg.load(folder)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        model.save(tmp_path / "file")
    model.save(folder)
    assert not list(folder.glob(".*"))
    assert torch.equal(crispseg.load(folder)(torch.ones(1, 3, 8, 8)), model(torch.ones(1, 3, 8, 8)))


def test_what_is_no_place_of_a_model_is_told(tmp_path):
    model = crispseg.create_model("crisp_nano", num_classes=2, **SHRINK_CRISP).eval()
    picture = np.zeros((40, 40, 3), np.uint8)
    for ask in (
        crispseg.load,
        lambda given: crispseg.segment(picture, given),
        lambda given: crispseg.evaluate(given, tmp_path),
    ):
        with pytest.raises(UserError, match="give the model it was made from"):
            ask(model.fused())
        with pytest.raises(UserError, match="not a Linear; crispseg.register_network"):
            ask(torch.nn.Linear(2, 2))
