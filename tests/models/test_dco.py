"""DCO's module: the gates as the operator sees them."""

import math

import pytest
import torch

from crispseg.errors import UserError
from crispseg.models.dco import DCO, DCOConfig, dco_config


def test_gates_start_at_one_hundredth_and_are_floored_and_bounded():
    dco = DCO(heads=3, head_width=5, config=DCOConfig())
    assert all(torch.equal(p, torch.full_like(p, 0.01)) for p in dco.parameters())
    gates = dco.gates()
    torch.testing.assert_close(gates.residual, torch.full((3,), 1e-4 + 0.01))
    for gate, size in ((gates.omega, 3), (gates.s, 5), (gates.t, 5)):
        torch.testing.assert_close(gate, torch.full((size,), math.tanh(0.01)))
    with torch.no_grad():
        for parameter in dco.parameters():
            parameter.fill_(50.0)
    gates = dco.gates()
    assert all((gate.abs() <= 1).all() for gate in (gates.omega, gates.s, gates.t))


def test_config_from_bool_mapping_and_mistakes():
    assert dco_config(True) == DCOConfig()
    assert not dco_config(False).enabled
    assert dco_config({"skip": "before"}).skip == "before"
    with pytest.raises(UserError, match=r"unknown config key 'dco.resdual'; did you mean 'dco.residual'"):
        dco_config({"resdual": True})
    with pytest.raises(UserError, match="dco.residual_readout must be one of row, unnormalized"):
        dco_config({"residual_readout": "column"})
