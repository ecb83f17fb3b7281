"""Public checkpoint files as the start of a training, and made into a model without one."""

import json

import pytest
import torch

import crispseg
from crispseg.cli.main import main
from crispseg.data.protocol import get_protocol, list_protocols
from crispseg.errors import UserError
from crispseg.models.registry import create_model
from crispseg.train.config import config_from, train_config
from crispseg.train.convert import convert
from crispseg.train.loop import train
from crispseg.train.start import IMAGENET_MEAN
from tests.peers.test_authors import fake
from tests.train import tiny


@pytest.fixture(scope="module")
def six_classes(tmp_path_factory):
    """A checkpoint of BANet's authors, as GeoSeg's trainer writes it."""
    path = tmp_path_factory.mktemp("authors") / "banet.ckpt"
    weights = {name: tensor.abs() if "running_var" in name else tensor for name, tensor in fake("banet").items()}
    torch.save({"state_dict": {f"net.{name}": tensor for name, tensor in weights.items()}}, path)
    return path


def test_a_quiet_run_still_warns_of_a_public_file_with_another_fusion(tmp_path, capsys):
    sizes = {key: tiny.OPTIONS[key] for key in ("width", "depths", "heads", "state")}
    public = crispseg.create_backbone("vssd_nano", fusion="raw", dco=False, last_stage="attention", **sizes)
    torch.save(public.state_dict(), tmp_path / "vssd.pth")
    data = tiny.make_folder(tmp_path / "data")
    for fusion in ("normalized", "raw"):
        model = {"name": "crisp_nano", "options": {**tiny.OPTIONS, "fusion": fusion}}
        values = tiny.settings(data, tmp_path / fusion, model={**model, "weights": str(tmp_path / "vssd.pth")})
        train(config_from(values, ["schedule.steps=1"]), quiet=True)
        said = capsys.readouterr().err
        assert ("warning: public VSSD files were trained with raw fusion" in said) == (fusion == "normalized")


def test_a_training_on_other_classes_takes_all_but_the_classifier(six_classes, tmp_path, capsys):
    model = {"name": "banet_restlite", "weights": str(six_classes)}
    values = tiny.settings(tiny.make_folder(tmp_path / "data"), tmp_path / "run", model=model)
    train(config_from(values, ["schedule.steps=1"]))
    assert "banet.ckpt (256 tensors; all classes new, as the file has 6; 2 of ours" in capsys.readouterr().err


def test_a_checkpoint_becomes_a_model_that_is_loaded_and_predicts_as_before(six_classes, tmp_path, capsys):
    words = ["convert", "banet_restlite", str(six_classes), "-o", str(tmp_path / "banet")]
    assert main([*words, "--protocol", "vaihingen/geoseg6", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"][5] == "clutter"
    model, truth = crispseg.load(tmp_path / "banet"), create_model("banet_restlite", 6).eval()
    crispseg.load_authors_checkpoint(truth, six_classes)
    assert all(torch.equal(tensor, truth.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert model.info.classes == get_protocol("vaihingen/geoseg6").classes
    assert model.info.bands == ("near_infrared", "red", "green") and model.info.mean == IMAGENET_MEAN


def test_a_converted_model_is_scored(six_classes, tmp_path):
    data = tiny.make_folder(tmp_path / "data")
    rows = "\n".join(f"{name},{number}" for number, name in enumerate("abcdef"))
    (data / "classes.csv").write_text(f"name,id\n{rows}\n")
    words = ["convert", "banet_restlite", str(six_classes), "-o", str(tmp_path / "banet")]
    assert main([*words, "--classes", str(data / "classes.csv")]) == 0
    assert main(["eval", str(tmp_path / "banet"), str(data), "-o", str(tmp_path / "report"), "-q"]) == 0


def test_what_cannot_be_converted_is_told_how_it_can(six_classes, tmp_path):
    with pytest.raises(UserError, match=r"is for 6 classes, but potsdam/paper5 has 5; give potsdam/geoseg6 or "):
        convert("banet_restlite", six_classes, protocol="potsdam/paper5")
    with pytest.raises(UserError, match="does not name its classes: give a protocol"):
        convert("banet_restlite", six_classes)
    torch.save(dict(list(fake("banet").items())[:100]), tmp_path / "encoder.pth")
    with pytest.raises(UserError, match=r"no whole network; `crisp train` starts from it"):
        convert("banet_restlite", tmp_path / "encoder.pth", protocol="potsdam/geoseg6")
    with pytest.raises(UserError, match=r"not a model folder.*`crisp convert` makes one"):
        crispseg.load(six_classes)
    with pytest.raises(UserError, match="no authors' checkpoints"):
        convert("crisp_nano", six_classes, protocol="potsdam/geoseg6")


def test_every_protocols_set_has_a_config_with_its_bands():
    for name in list_protocols():
        assert len(train_config(get_protocol(name).dataset).data.bands) == 3
