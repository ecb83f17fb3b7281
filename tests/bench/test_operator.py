import dataclasses

import pytest
import torch

from crispseg.bench import operator
from crispseg.bench.operator import Shape, function, least_bytes, random_inputs, shape_at, truth
from crispseg.bench.ops import bench_ops
from crispseg.errors import UserError
from crispseg.models.registry import create_model
from crispseg.models.vssd import NCSSDMixer
from crispseg.ops import BACKENDS

SHAPE = Shape(2, 37, 2, 8, 4)


def test_shapes_are_those_in_the_network(monkeypatch):
    seen = []

    def note(v, b, c, rho, d, gates, rule):
        seen.append((*v.shape, b.shape[-1]))
        return v.float()

    monkeypatch.setattr("crispseg.models.vssd.ncssd", note)
    with torch.device("meta"), torch.no_grad():
        create_model("crisp_tiny").eval()(torch.empty(1, 3, 200, 200))
    assert [shape_at(stage, 200, 1) for stage in (1, 2, 3, 4)] == list(dict.fromkeys(Shape(*x) for x in seen))
    assert NCSSDMixer.__module__ == "crispseg.models.vssd"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bytes_are_those_of_the_tensors(settings, precision):
    output_gradient, *inputs = random_inputs(SHAPE, precision, "forward+backward", settings, seed=0)
    (output,) = function("torch", SHAPE, "forward", False)(*inputs)
    tokens = sum(x.nbytes for x in inputs[:2])
    assert least_bytes(SHAPE, precision, "forward") == tokens + output.nbytes
    both = least_bytes(SHAPE, precision, "forward+backward")
    assert both == 3 * tokens + output.nbytes + output_gradient.nbytes


def test_gradients_are_those_of_finite_differences(settings):
    given = [x.double() for x in random_inputs(SHAPE, "fp32", "forward+backward", settings, seed=0)]
    output_gradient, *inputs = given
    _, *gradients = truth(SHAPE, "forward+backward", tuple(given))
    for i, gradient in enumerate(gradients):
        direction = torch.randn_like(inputs[i])
        ends = []
        for sign in (1, -1):
            moved = [x + sign * 1e-5 * direction if j == i else x for j, x in enumerate(inputs)]
            (y,) = truth(SHAPE, "forward", tuple(moved))
            ends.append((y * output_gradient).sum())
        slope = (ends[0] - ends[1]) / 2e-5
        assert (gradient * direction).sum().item() == pytest.approx(slope.item(), rel=1e-5)


def test_a_run_forward_and_backward(settings):
    several = dataclasses.replace(settings, precisions=("fp32", "bf16"))
    result = bench_ops(several, stages=(1, 4), say=lambda text: None)
    assert len(result.cells) == 2 * 2 * 2 * len(BACKENDS)
    assert {cell.status for cell in result.cells} == {"ok"}
    for cell in result.cells:
        assert cell.gigabytes_per_second == pytest.approx(cell.bytes / cell.latency_ms.median / 1e6)
    assert [cell.tokens for cell in result.cells[:: len(BACKENDS) * 4]] == [64, 1]


def test_a_wrong_backend_gets_no_number_but_the_others_do(settings, monkeypatch):
    right = BACKENDS["torch"]
    monkeypatch.setitem(BACKENDS, "sloppy", lambda *args: right(*args) * (1 + 1e-4))
    result = bench_ops(settings, say=lambda text: None)
    statuses = {(cell.subject, cell.status, cell.latency_ms is None) for cell in result.cells}
    assert statuses == {("torch", "ok", False), ("reference", "ok", False), ("sloppy", "wrong", True)}
    assert result.wrong


def test_a_wrong_gradient_of_a_gate_is_noticed(settings):
    given = random_inputs(SHAPE, "fp32", "forward+backward", settings, seed=0)
    true = truth(SHAPE, "forward+backward", given)
    found = function("torch", SHAPE, "forward+backward", False)(*given)
    assert operator.error("fp32", found, true) < 1e-5
    for i in range(1, len(true)):
        spoilt = [x * 1.1 if i == j else x for j, x in enumerate(found)]
        assert operator.error("fp32", tuple(spoilt), true) > 1e-5


def test_mistakes(settings):
    with pytest.raises(UserError, match="unknown operator backend 'troch'; did you mean 'torch'"):
        bench_ops(settings, ["troch"])
    with pytest.raises(UserError, match="stages are numbered 1 to 4"):
        bench_ops(settings, stages=(0,))
