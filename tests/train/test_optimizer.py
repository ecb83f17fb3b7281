import pytest
import torch

import crispseg
from crispseg.train.ema import WeightAverage
from crispseg.train.optimizer import (
    Lookahead,
    OptimizerConfig,
    build_optimizer,
    decays,
    parameter_groups,
    without_effect,
)
from tests.train.tiny import OPTIONS, Plain


@pytest.fixture(scope="module")
def model():
    return crispseg.create_model("crisp_nano", num_classes=3, **OPTIONS)


def test_what_is_not_decayed(model):
    left_out = {name for name, parameter in model.named_parameters() if not decays(name, parameter)}
    for name, parameter in model.named_parameters():
        if parameter.ndim <= 1 or "bias" in name or "embedding" in name:
            assert name in left_out, name
    ends = {name.rsplit(".", 1)[-1] for name in left_out}
    assert {"dt_bias", "A_log", "D", "lambda_", "omega", "s", "t", "log_scale", "embedding", "bias"} <= ends
    assert {name for name in left_out if ".biases." in name} == {f"head.hyper.biases.{i}" for i in range(3)}
    kept = {name: p for name, p in model.named_parameters() if name not in left_out}
    assert all(p.ndim > 1 for p in kept.values())
    assert "head.hyper.weights.0" in kept and "backbone.layers.0.blocks.0.attn.in_proj.weight" in kept


def test_wider_gains_and_tables_are_not_decayed_either():
    wide = torch.zeros(4, 4)
    for name in ("mamba.A_log", "attn.relative_position_bias_table", "token.basic_queries", "x.pos_embed"):
        assert not decays(name, wide), name
    embedding = torch.nn.Sequential(torch.nn.Embedding(3, 4), torch.nn.Linear(4, 4))
    groups = parameter_groups(embedding, OptimizerConfig(lr=1.0))
    decayed = [group["params"] for group in groups if group["weight_decay"]]
    assert len(decayed) == 1 and decayed[0][0] is embedding[1].weight


def test_every_parameter_is_in_one_group(model):
    config = OptimizerConfig(lr=1e-3, backbone_lr=1e-4, weight_decay=0.1)
    groups = parameter_groups(model, config)
    seen = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(seen) == sorted(id(parameter) for parameter in model.parameters())
    in_backbone = {id(parameter) for parameter in model.backbone.parameters()}
    for group in groups:
        rates = {1e-4 if id(parameter) in in_backbone else 1e-3 for parameter in group["params"]}
        assert rates == {group["lr"]} == {group["peak"]}
    assert {group["weight_decay"] for group in groups} == {0.0, 0.1}


def test_gates_and_temperatures_have_a_rate_of_their_own():
    model = crispseg.create_model("crisp_nano", num_classes=3, fusion="selective", **OPTIONS)
    groups = parameter_groups(model, OptimizerConfig(lr=1e-3, gate_factor=10.0))
    rates = {id(parameter): group["peak"] for group in groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        expected = 1e-2 if ".dco." in name or ".selection." in name else 1e-3
        assert rates[id(parameter)] == pytest.approx(expected), name


def test_rates_of_parts_that_a_network_has_not_are_told(model):
    config = OptimizerConfig(lr=1e-3, backbone_lr=1e-4, gate_factor=10)
    assert without_effect(model, config) == ""
    bare = Plain()
    assert without_effect(bare, config) == "without effect on this network: optimizer.gate_factor (no gates)"
    bare.encoder, bare.backbone = bare.backbone, None
    said = "without effect on this network: optimizer.backbone_lr (no parameters under `backbone.`)"
    assert without_effect(bare, OptimizerConfig(lr=1e-3, backbone_lr=1e-4)) == said
    assert without_effect(bare, config) == f"{said} and optimizer.gate_factor (no gates)"
    assert without_effect(bare, OptimizerConfig(lr=1e-3)) == ""


def test_the_optimizer_is_adamw(model):
    optimizer = build_optimizer(model, OptimizerConfig(lr=1e-3, betas=(0.8, 0.9)), torch.device("cpu"))
    assert isinstance(optimizer, torch.optim.AdamW)
    assert all(tuple(group["betas"]) == (0.8, 0.9) for group in optimizer.param_groups)


def test_lookahead_is_the_formula():
    weight = torch.tensor([1.0, -2.0], dtype=torch.float64)
    moves = torch.randn(7, 2, dtype=torch.float64)
    lookahead = Lookahead([weight], every=3, alpha=0.25)
    fast, slow = weight.clone(), weight.clone()
    for step, move in enumerate(moves, 1):
        weight += move
        lookahead.step(step)
        fast = fast + move
        if step % 3 == 0:
            slow = slow + 0.25 * (fast - slow)
            fast = slow.clone()
    torch.testing.assert_close(weight, fast)


def test_average_is_the_formula_and_swaps_in_and_out():
    layer = torch.nn.Linear(2, 1).double()
    average = WeightAverage(layer, 0.5)
    expected = layer.weight.detach().clone()
    for step in range(1, 20):
        with torch.no_grad():
            layer.weight += torch.randn_like(layer.weight)
        average.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * layer.weight.detach()
    now = layer.weight.detach().clone()
    with average.in_place():
        torch.testing.assert_close(layer.weight.detach(), expected)
    assert torch.equal(layer.weight, now)
