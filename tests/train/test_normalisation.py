"""Weights that were trained on ImageNet are shown images that are normalised as there, band by band."""

import json
from pathlib import Path

import pytest
import torch

import crispseg
from crispseg.models.vssd import create_backbone
from crispseg.train import loop
from crispseg.train.config import config_from
from crispseg.train.setup import build_model, open_data
from crispseg.train.start import IMAGENET_MEAN, IMAGENET_STD
from tests.train import tiny

MIDDLE = (pytest.approx(114.495), pytest.approx(57.63))  # of red's, green's and blue's
RED, GREEN, BLUE = zip(IMAGENET_MEAN, IMAGENET_STD, strict=True)
SAID = ", with ImageNet's mean and std"


@pytest.fixture(scope="module")
def public(tmp_path_factory) -> Path:
    """A file like the public VSSD's, of the smallest backbone."""
    path = tmp_path_factory.mktemp("public") / "vssd.pth"
    options = {key: tiny.OPTIONS[key] for key in ("width", "depths", "heads", "state")}
    torch.save({"model": create_backbone("vssd_nano", dco=False, **options).state_dict()}, path)
    return path


def started(values, bands=None):
    config = config_from(values, [f"data.bands=[{', '.join(bands)}]"] if bands else [])
    return build_model(config, open_data(config))


@pytest.mark.parametrize(
    ("bands", "count", "expected"),
    [
        (None, 3, [RED, GREEN, BLUE]),
        (("red", "green", "blue"), 3, [RED, GREEN, BLUE]),
        (("near_infrared", "red", "green"), 3, [MIDDLE, RED, GREEN]),
        (("red", "green", "blue", "near_infrared"), 4, [RED, GREEN, BLUE, MIDDLE]),
        (None, 4, [MIDDLE] * 4),
    ],
)
def test_mean_and_spread_go_by_the_names_of_the_bands(bands, count, expected, public, tmp_path):
    values = tiny.settings(tiny.make_folder(tmp_path / "data", bands=count), tmp_path / "run")
    values["model"]["weights"] = str(public)
    model = started(values, bands)
    assert list(zip(model.info.mean, model.info.std, strict=True)) == expected
    assert model.origin.endswith(SAID)


def test_a_rivals_file_is_normalised_so_too_and_says_so(folder, tmp_path):
    torch.save(crispseg.create_model("banet_restlite", 2).state_dict(), tmp_path / "banet.pth")
    values = tiny.settings(folder, tmp_path / "run")
    values["model"] = {"name": "banet_restlite", "weights": str(tmp_path / "banet.pth")}
    for bands in (None, ("near_infrared", "red", "green")):  # its first convolution is not adapted
        model = started(values, bands)
        assert (model.info.mean, model.info.std) == (IMAGENET_MEAN, IMAGENET_STD)
        assert model.origin.startswith("the authors' checkpoint") and model.origin.endswith(SAID)


def test_a_resumed_run_keeps_its_normalisation(public, folder, tmp_path):
    """The weights it began with are not read again."""
    values = tiny.settings(folder, tmp_path / "run", schedule={"steps": 4}, save_every=1, max_minutes=1e-9)
    values["model"] = {**values["model"], "weights": str(public)}
    assert not loop.train(config_from(values)).finished
    assert loop.resume(tmp_path / "run", ["max_minutes=10"]).finished
    info = json.loads((tmp_path / "run" / "best" / "config.json").read_text())["info"]
    assert (info["mean"], info["std"]) == (list(IMAGENET_MEAN), list(IMAGENET_STD))
