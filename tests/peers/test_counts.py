"""Sizes of every peer against those counted on the authors' modules. On the meta device: nothing is computed."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import crispseg.peers  # noqa: F401
from crispseg.models.registry import create_model
from tests.peers.facts import PARTS, PEERS, TOTALS, VARIANTS


def on_meta(name: str, num_classes: int = 6, **options: object) -> nn.Module:
    with torch.device("meta"):
        return create_model(name, num_classes=num_classes, **options)


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def gmacs(model: nn.Module) -> float:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(torch.empty(1, 3, 512, 512, device="meta"))
    return counter.get_total_flops() / 2e9


@pytest.mark.parametrize("name", PEERS)
def test_parameters_equal_the_authors_to_the_unit(name: str) -> None:
    totals, _, _ = TOTALS[name]
    assert tuple(parameters(on_meta(name, n)) for n in (5, 6, 7)) == totals


@pytest.mark.parametrize("name", PEERS)
def test_macs_are_the_authors(name: str) -> None:
    _, expected, num_classes = TOTALS[name]
    assert gmacs(on_meta(name, num_classes)) == pytest.approx(expected, rel=5e-4)


@pytest.mark.parametrize("name", PARTS)
def test_parts_have_the_authors_sizes(name: str) -> None:
    model = on_meta(name)
    assert {part: parameters(model.get_submodule(part)) for part in PARTS[name]} == PARTS[name]


@pytest.mark.parametrize("name", VARIANTS)
def test_other_variants(name: str) -> None:
    model = on_meta(name)
    millions, expected = VARIANTS[name]
    assert parameters(model) / 1e6 == pytest.approx(millions, abs=0.005)
    assert gmacs(model) == pytest.approx(expected, abs=0.005)


def test_d2ls_with_fewer_layers() -> None:
    assert parameters(on_meta("d2ls_convnextb", layers=2)) / 1e6 == pytest.approx(92.45, abs=0.005)
    assert parameters(on_meta("d2ls_convnextb", layers=1)) / 1e6 == pytest.approx(90.87, abs=0.005)


def test_d2ls_layers_that_never_run_ask_for_no_gradient() -> None:
    model = on_meta("d2ls_convnextb")
    assert sum(p.numel() for p in model.parameters() if not p.requires_grad) == 3_945_216


def test_dcswin_freezes_what_its_authors_freeze() -> None:
    model = on_meta("dcswin_tiny", freeze_first_stage=True)
    assert sum(p.numel() for p in model.parameters() if not p.requires_grad) == 304_086
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 45_327_494
