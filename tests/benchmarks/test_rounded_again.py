"""The experiment's backbone differs from the shipped one by errors like those of rounding to 8 bits, and no others."""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import rounded_again

from crispseg.models.backbone_folder import BackboneInfo, load_backbone, save_backbone
from crispseg.models.vssd import create_backbone


def test_errors_are_those_of_rounding(tmp_path, capsys):
    torch.manual_seed(0)
    once, again = tmp_path / "once", tmp_path / "again"
    exact = create_backbone("vssd_nano")
    save_backbone(exact, once, "vssd_nano", BackboneInfo(), "int8")
    assert rounded_again.main([str(once), str(again)]) == 0
    held, moved = load_file(once / "model.safetensors"), load_backbone(again).state_dict()
    squares = torch.zeros(2)
    for name, before in load_backbone(once).state_dict().items():
        scale = held.get(f"{name}/scale")
        if scale is None:
            assert torch.equal(before, moved[name])
        else:
            step = scale.float().view(-1, *[1] * (before.ndim - 1))
            assert ((moved[name] - before).abs() <= 0.5001 * step).all()
            errors = (before - exact.state_dict()[name]) / step, (moved[name] - before) / step
            squares += torch.stack([error.square().sum() for error in errors])
    assert 0.95 < squares[1] / squares[0] < 1.05


def test_other_backbones_are_refused(tmp_path, capsys):
    save_backbone(create_backbone("vssd_nano"), tmp_path / "whole", "vssd_nano", BackboneInfo(), "half")
    assert rounded_again.main([str(tmp_path / "whole"), str(tmp_path / "out")]) == 1
    assert "not kept in 8 bits" in capsys.readouterr().err
