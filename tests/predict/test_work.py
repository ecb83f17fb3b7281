"""What precision `auto` stands for: bfloat16 where device and model are made for it, and said in words elsewhere."""

import numpy as np
import pytest
import torch

import crispseg
from crispseg.errors import UserError
from crispseg.fused.model import wholly_fused
from crispseg.models.base import ModelInfo
from crispseg.predict import evaluate, work
from crispseg.predict.work import Settings
from tests.predict.standins import StandIn


def settled(model, has_it, monkeypatch, **settings):
    monkeypatch.setattr(work, "multiplies_bfloat16", lambda device: has_it)
    return Settings(device="cpu", **settings).settled(model).precision


def test_auto_goes_by_device_and_model(monkeypatch):
    ours = crispseg.create_model("crisp_nano", 3)
    assert settled(ours, True, monkeypatch) == "bfloat16"
    assert settled(ours, False, monkeypatch) == "float32"
    assert settled(ours, True, monkeypatch, exact=True) == "float32"
    assert settled(StandIn(), True, monkeypatch) == "float32", "nobody knows what a foreign network stands"
    assert settled(ours, True, monkeypatch, precision="float32") == "float32"
    assert settled(StandIn(), False, monkeypatch, precision="bfloat16") == "bfloat16"


@pytest.mark.parametrize("precision", ["half", "bf16", ""])
def test_other_words_are_refused(precision):
    with pytest.raises(UserError, match="unknown precision"):
        Settings(precision=precision).settled(StandIn())


@pytest.mark.parametrize(
    ("name", "options", "wholly"),
    [
        ("crisp_nano", {}, True),
        ("crisp_nano", {"neck": "concat"}, True),
        ("vssd_nano_upernet", {}, False),
        ("unetformer_r18", {}, False),
    ],
)
def test_which_models_have_fused_forms_of_all_their_parts(name, options, wholly):
    model = crispseg.create_model(name, 3, **options).eval()
    assert wholly_fused(model) == wholly == (not model.fused(graphs=False).as_written)


def test_both_precisions_make_nearly_the_same_map(monkeypatch):
    torch.manual_seed(0)
    model = crispseg.create_model("crisp_nano", 4)
    model.info = ModelInfo(mean=(90.0,) * 3, std=(40.0,) * 3)
    image = np.random.default_rng(0).integers(0, 255, (90, 130, 3)).astype(np.uint8)
    taken = []
    real = evaluate.Evaluator.__init__

    def noting(self, *args, **options):
        real(self, *args, **options)
        taken.append(self.precision)

    monkeypatch.setattr(evaluate.Evaluator, "__init__", noting)
    monkeypatch.setattr(work, "multiplies_bfloat16", lambda device: True)
    rough = crispseg.segment(image, model)
    exact = crispseg.segment(image, model, precision="float32")
    assert taken == ["bfloat16", "float32"]
    assert (rough == exact).mean() > 0.95
