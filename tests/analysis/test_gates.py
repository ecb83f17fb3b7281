"""Gates off is the model without DCO; what was learned is told as it acts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from crispseg.analysis.gates import GATES, calibrated_mixers, gates_off, learned_gates, learned_temperatures
from crispseg.models.base import SegmentationModel
from tests.analysis.conftest import make_model
from tests.evaluate.toy import colour_model


@pytest.mark.parametrize("name", ["crisp_nano", "vssd_nano_upernet"])
def test_gates_off_is_a_model_built_without_dco(name: str) -> None:
    model, bare = make_model(name, dco=True), make_model(name, dco=False)
    unused = bare.load_state_dict(model.state_dict(), strict=False)
    assert not unused.missing_keys and all(".dco." in key for key in unused.unexpected_keys)
    image = torch.randn(1, 3, 40, 56)
    with torch.no_grad():
        before = model(image)
        with gates_off(model):
            off = model(image)
        after = model(image)
        torch.testing.assert_close(off, bare(image), rtol=0, atol=0)
    assert torch.equal(before, after) and not torch.allclose(before, off, rtol=1e-2)


def test_gates_come_back_whatever_happens(crisp: SegmentationModel) -> None:
    before = {name: mixer.dco for name, mixer in calibrated_mixers(crisp).items()}
    keys = list(crisp.state_dict())
    with pytest.raises(ZeroDivisionError), gates_off(crisp):
        assert not calibrated_mixers(crisp)
        raise ZeroDivisionError
    after = {name: mixer.dco for name, mixer in calibrated_mixers(crisp).items()}
    assert before and all(after[name] is before[name] for name in before)
    assert list(crisp.state_dict()) == keys


def test_nothing_to_switch_off() -> None:
    for model in (make_model(dco=False), colour_model()):
        with gates_off(model):
            assert not calibrated_mixers(model)
        assert learned_gates(model) == ()


def test_learned_gates_are_the_formulas(crisp: SegmentationModel) -> None:
    state = {key: value.double().numpy() for key, value in crisp.state_dict().items()}
    found = learned_gates(crisp)
    assert [each.block for each in found][:3] == ["stage 1 block 1", "stage 1 block 2", "stage 2 block 1"]
    assert len(found) == sum(crisp.backbone.config.depths)
    for each in found:
        _, stage, _, block = each.block.split()
        prefix = f"backbone.layers.{int(stage) - 1}.blocks.{int(block) - 1}.attn.dco."
        acting = {"residual": 1e-4 + state[prefix + "lambda_"]}
        acting |= {name: np.tanh(state[prefix + name]) for name in ("omega", "s", "t")}
        for name in GATES:
            spread = each.gates[name]
            assert spread is not None
            values = acting[name]
            assert (spread.mean, spread.low, spread.high) == pytest.approx(
                (values.mean(), values.min(), values.max()), abs=1e-6
            )
        raw = {key: state[prefix + ("lambda_" if key == "residual" else key)] for key in GATES}
        for key, values in raw.items():
            assert each.distances[key] == pytest.approx(np.abs(values - 0.01).mean(), abs=1e-6)
        everything = np.concatenate([values.ravel() for values in raw.values()])
        assert each.travelled == pytest.approx(np.abs(everything - 0.01).mean(), abs=1e-6)
        gains = [
            (1 + t) * (1 + o) / (1 + s) for o in acting["omega"] for s, t in zip(acting["s"], acting["t"], strict=True)
        ]
        assert (each.gain.mean, each.gain.low, each.gain.high) == pytest.approx(
            (np.mean(gains), np.min(gains), np.max(gains)), rel=1e-5
        )


def test_a_step_that_is_off_has_no_gate() -> None:
    first = learned_gates(make_model(dco={"residual": False, "rebalance": False}))[0]
    assert first.gates["residual"] is first.gates["s"] is first.gates["t"] is None
    assert first.distances["residual"] is first.distances["s"] is None and first.distances["omega"] is not None
    assert first.gates["omega"] is not None
    assert first.gain.mean == pytest.approx(1 + first.gates["omega"].mean)


def test_temperatures_are_those_of_selective_fusion_alone() -> None:
    assert learned_temperatures(make_model()) == () and learned_temperatures(colour_model()) == ()
    model = make_model(fusion="selective", selectivity=3.0)
    block = model.backbone.layers[1].blocks[0]
    with torch.no_grad():
        block.attn.selection.queries.weight[0] = 7.0
    found = learned_temperatures(model)
    assert len(found) == sum(model.backbone.config.depths) and all(each.start == 3 for each in found)
    changed = next(each for each in found if each.block == "stage 2 block 1")
    assert (changed.keys.mean, changed.queries.low, changed.queries.high) == (3, 3, 7)
