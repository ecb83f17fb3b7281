"""Models that come with the package: found by name, stored in half precision, loaded without a network."""

import os
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import crispseg
from crispseg.bench import specs
from crispseg.cli.main import main
from crispseg.data.protocol import get_protocol
from crispseg.errors import UserError
from crispseg.evaluate.opening import open_model
from crispseg.models import folder as folders
from crispseg.models import shipped
from crispseg.models.base import ModelInfo
from crispseg.train.start import start_from
from tests.models.test_registered import SHRINK_CRISP

INFO = ModelInfo(classes=("roof", "road"), mean=(15.0,) * 3, std=(8.0,) * 3, training_data="two streets #0123456789, x")


def small_model(classes=2):
    model = crispseg.create_model("crisp_nano", num_classes=classes, **SHRINK_CRISP).eval()
    model.info = INFO
    return model


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A package that ships one small model."""
    place = tmp_path / "package" / "shipped"
    monkeypatch.setattr(shipped, "_FOLDER", place)
    monkeypatch.setattr(shipped, "DEFAULT", "nano_streets")
    monkeypatch.chdir(tmp_path)
    model = small_model()
    folders.save(model, place / "nano_streets", half=True)
    return model


def test_by_name_without_a_network_in_float32(shelf, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a shipped model needs no network")

    monkeypatch.setattr(socket, "socket", refuse)
    assert shipped.list_shipped() == ["nano_streets"]
    loaded = crispseg.load("nano_streets").state_dict()
    for name, tensor in shelf.state_dict().items():
        expected = tensor.half().float() if tensor.is_floating_point() else tensor
        assert loaded[name].dtype == expected.dtype and torch.equal(loaded[name], expected)


def test_a_model_is_called_what_it_was_loaded_as(shelf, tmp_path):
    assert shelf.title == "crisp_nano", "never loaded: the kind of network"
    assert crispseg.load("nano_streets").title == "nano_streets"
    shelf.save(tmp_path / "mine")
    assert crispseg.load("mine").title == crispseg.load(tmp_path / "mine").title == "mine"
    run = tmp_path / "runs" / "streets-1"
    shelf.save(run / "best")
    (run / "config.yaml").write_text("model: crisp_nano\n")
    assert crispseg.load(run).title == crispseg.load(run / "best").title == "streets-1"
    crispseg.load("mine").save(tmp_path / "copy")
    assert crispseg.load("copy").title == "copy" and crispseg.load("copy").name == "crisp_nano"


def test_half_precision_takes_half_the_room(shelf, tmp_path):
    shelf.save(tmp_path / "full")
    half, full = (
        load_file(place / "model.safetensors") for place in (shipped.find_folder("nano_streets"), tmp_path / "full")
    )
    for name, tensor in full.items():
        bytes_per_value = 2 if tensor.is_floating_point() else tensor.element_size()
        assert half[name].element_size() == bytes_per_value and half[name].shape == tensor.shape


def test_everyone_who_may_read_the_card_may_read_the_weights(tmp_path):
    before = os.umask(0o022)
    try:
        small_model().save(tmp_path / "model")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()} == {0o644}


def test_a_folder_of_that_name_wins(shelf, tmp_path):
    small_model(classes=4).save(tmp_path / "nano_streets")
    assert crispseg.load("nano_streets").num_classes == 4
    assert crispseg.load(shipped._FOLDER / "nano_streets").num_classes == 2


def test_an_unknown_name(shelf):
    with pytest.raises(UserError, match="no model folder nano_street; did you mean 'nano_streets'"):
        crispseg.load("nano_street")
    with pytest.raises(UserError, match="written by model.save .* comes with crispseg: nano_streets$"):
        crispseg.load("zzz")
    assert shipped.is_saved("nano_streets") and not shipped.is_saved("zzz")


def test_a_package_without_models(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "_FOLDER", tmp_path / "nowhere")
    assert shipped.list_shipped() == []
    with pytest.raises(UserError, match="no model folder zzz; give one written by model.save or by `crisp train`$"):
        crispseg.load("zzz")


def test_predict_without_a_model_says_which_it_takes(shelf, tmp_path, capsys):
    pytest.importorskip("rasterio")
    from tests.geo.rasters import random_pixels, write_raster

    scene = write_raster(tmp_path / "city.tif", random_pixels(3, 40, 50))
    assert main(["predict", str(scene), "-o", "map.tif", "--tile", "64"]) == 0
    said = capsys.readouterr().err
    assert "using nano_streets, trained on two streets" in said
    assert main(["predict", str(scene), "-o", "other.tif", "--tile", "64", "-m", "nano_streets"]) == 0
    assert "using" not in capsys.readouterr().err
    assert (tmp_path / "map.tif").read_bytes() == (tmp_path / "other.tif").read_bytes()


def test_every_place_that_takes_a_model_takes_the_name(shelf, capsys):
    assert open_model("nano_streets").model.num_classes == 2
    with pytest.raises(UserError, match="did you mean 'nano_streets'"):
        open_model("nano_street")
    assert [(spec.name, spec.folder) for spec in specs.parse(["nano_streets"])] == [("nano_streets", True)]
    with pytest.raises(UserError, match="did you mean 'nano_streets'"):
        specs.parse(["nano_street"])
    other = small_model()
    start_from(other, Path("nano_streets"))
    assert all(torch.equal(a, b.half().float()) for a, b in zip(other.parameters(), shelf.parameters(), strict=True))
    assert main(["info", "nano_streets", "--size", "32"]) == 0
    assert "roof, road" in capsys.readouterr().out
    assert main(["models", "nano_s*"]) == 0
    assert "two streets" in capsys.readouterr().out


# --- the weights that are really shipped ---


def test_the_shipped_model_is_small_and_half():
    weights = shipped.find_folder(shipped.DEFAULT) / "model.safetensors"
    assert weights.stat().st_size <= 16 * 2**20
    assert {t.dtype for t in load_file(weights).values() if t.is_floating_point()} == {torch.float16}


def test_the_shipped_card_says_what_a_user_must_know():
    place, protocol = shipped.find_folder(shipped.DEFAULT), get_protocol("dubai/own5")
    card = (place / "README.md").read_text(encoding="utf-8")
    for fact in (shipped.DEFAULT, "CC0", "Apache-2.0", protocol.hash, "## Recipe", "## Known failures", "BF@3px"):
        assert fact in card
    assert all(name in card for name in protocol.classes)
    pictures = [path.name for path in place.glob("*.jpg")]
    assert pictures and all(f"]({name})" in card for name in pictures)
    assert not any(path in card for path in ("/work", "/root", "/tmp", "/home"))


def test_the_shipped_model_runs():
    model = crispseg.load(shipped.DEFAULT)
    assert model.info.classes == get_protocol("dubai/own5").classes and len(model.info.mean) == 3
    with torch.no_grad():
        assert model(torch.zeros(1, 3, 64, 96)).shape == (1, 5, 64, 96)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
