"""Weights averaged over models, against the formula."""

import dataclasses
import sys
from pathlib import Path

import pytest
import torch

import crispseg
from tests.models.test_registered import SHRINK_CRISP

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import average_models


def saved(folder, seed, mean, **options):
    torch.manual_seed(seed)
    model = crispseg.create_model("crisp_nano", num_classes=2, **{**SHRINK_CRISP, **options})
    model.info = dataclasses.replace(
        model.info, classes=("a", "b"), mean=(mean,) * 3, std=(2.0 * mean,) * 3, temperature=mean / 50
    )
    model.save(folder)
    return model


def test_is_the_weighted_mean(tmp_path):
    one, other = saved(tmp_path / "one", 0, 100.0), saved(tmp_path / "other", 1, 60.0)
    words = [str(tmp_path / "out"), f"{tmp_path / 'one'}=3", f"{tmp_path / 'other'}=1"]
    assert average_models.main(words) == 0
    found = crispseg.load(tmp_path / "out")
    assert found.info.mean == pytest.approx((90.0,) * 3) and found.info.std == pytest.approx((180.0,) * 3)
    assert found.info.temperature == pytest.approx(1.8)
    for (name, mean), a, b in zip(
        found.state_dict().items(), one.state_dict().values(), other.state_dict().values(), strict=True
    ):
        expected = 0.75 * a.double() + 0.25 * b.double() if a.is_floating_point() else a
        torch.testing.assert_close(mean.double(), expected.double(), rtol=1e-6, atol=1e-7, msg=name)


def test_other_architectures_are_refused(tmp_path, capsys):
    saved(tmp_path / "one", 0, 100.0)
    saved(tmp_path / "other", 1, 60.0, prototypes=5)
    words = [str(tmp_path / "out"), f"{tmp_path / 'one'}=1", f"{tmp_path / 'other'}=1"]
    assert average_models.main(words) == 1
    assert "differ in their architecture" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_norms_are_counted_anew_on_crops_as_they_come(tmp_path):
    """The first norm's statistics against its inputs', caught on the way; all norms move."""
    model = saved(tmp_path / "one", 0, 100.0)
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    caught = []
    norms[0].register_forward_pre_hook(lambda module, inputs: caught.append(inputs[0].double()))
    crops = [255 * torch.rand(2, 3, 64, 64) for _ in range(3)]
    before = [norm.running_mean.clone() for norm in norms]
    average_models.count_norms(model, crops)
    mean = torch.stack([x.mean((0, 2, 3)) for x in caught]).mean(0)
    variance = torch.stack([x.var((0, 2, 3)) for x in caught]).mean(0)
    torch.testing.assert_close(norms[0].running_mean.double(), mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(norms[0].running_var.double(), variance, rtol=1e-5, atol=1e-6)
    assert all(not torch.equal(norm.running_mean, was) for norm, was in zip(norms, before, strict=True))
    assert not model.training and all(norm.momentum == 0.1 and not norm.training for norm in norms)
