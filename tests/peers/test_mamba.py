"""The chunked scan against the recurrence, one token after the other in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from crispseg.peers.mamba import Mamba, selective_scan
from tests.conftest import relative_error


def scan_by_loop(x: Tensor, dt: Tensor, A_log: Tensor, B: Tensor, C: Tensor) -> Tensor:
    x, dt, A_log, B, C = (t.double() for t in (x, dt, A_log, B, C))
    delta, A = F.softplus(dt), -A_log.exp()
    state = torch.zeros(x.shape[0], *A.shape, dtype=torch.float64)
    out = []
    for t in range(x.shape[1]):
        d = delta[:, t, :, None]
        state = torch.exp(d * A) * state + d * B[:, t, None, :] * x[:, t, :, None]
        out.append((state * C[:, t, None, :]).sum(-1))
    return torch.stack(out, dim=1)


def draw(batch: int, length: int, inner: int = 5, states: int = 3, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    shapes = [(batch, length, inner), (batch, length, inner), (inner, states), *[(batch, length, states)] * 2]
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


@given(st.integers(1, 70), st.integers(1, 40))
def test_any_length_and_chunk(length: int, chunk: int) -> None:
    inputs = draw(2, length)
    assert relative_error(selective_scan(*inputs, chunk=chunk), scan_by_loop(*inputs)) < 1e-5


@pytest.mark.parametrize("shift", [-30.0, 0.0, 60.0])
def test_extreme_steps_stay_exact(shift: float) -> None:
    """Delta from 1e-13 (remembers all) to 60 (exp(-60 * 16) forgets at once)."""
    x, dt, _, B, C = draw(1, 100, states=16)
    inputs = [x, dt + shift, torch.arange(1, 17).float().log().repeat(5, 1), B, C]
    out = selective_scan(*inputs)
    assert out.isfinite().all()
    assert relative_error(out, scan_by_loop(*inputs)) < 1e-5


def test_gradients_are_those_of_the_loop() -> None:
    inputs = [t.requires_grad_() for t in draw(2, 37)]
    weight = torch.randn(2, 37, 5)
    ours = torch.autograd.grad((selective_scan(*inputs, chunk=8) * weight).sum(), inputs)
    truth = torch.autograd.grad((scan_by_loop(*inputs) * weight).sum(), inputs)
    assert max(relative_error(a, b) for a, b in zip(ours, truth, strict=True)) < 1e-5


def test_gradcheck() -> None:
    inputs = [t.requires_grad_() for t in draw(1, 7, inner=2, states=2, dtype=torch.float64)]
    assert torch.autograd.gradcheck(lambda *a: selective_scan(*a, chunk=3), inputs)


def test_what_is_kept_for_the_backward_pass_does_not_hold_the_states() -> None:
    length, inner, states, chunk = 256, 32, 16, 16
    inputs = [t.requires_grad_() for t in draw(1, length, inner, states)]
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        selective_scan(*inputs, chunk=chunk)
    all_inputs, one_state = sum(t.nbytes for t in inputs), 4 * inner * states
    assert sum(kept.values()) <= 2 * all_inputs + length // chunk * one_state


def test_half_precision_inputs_are_scanned_in_float32() -> None:
    inputs = draw(1, 40)
    halves = [t.bfloat16() for t in inputs]
    out = selective_scan(*halves)
    assert out.dtype == torch.float32
    assert relative_error(out, scan_by_loop(*halves)) < 1e-5


def test_block_is_the_formula_and_causal() -> None:
    block = Mamba(8, d_state=4).double()
    tokens = torch.randn(2, 9, 8, dtype=torch.float64)
    x, z = F.linear(tokens, block.in_proj.weight).split(16, dim=-1)
    convolved = torch.zeros_like(x)
    for t in range(9):
        for back in range(4):
            if t >= back:
                convolved[:, t] += block.conv1d.weight[:, 0, 3 - back] * x[:, t - back]
    x = F.silu(convolved + block.conv1d.bias)
    dt, B, C = F.linear(x, block.x_proj.weight).split([1, 4, 4], dim=-1)
    y = scan_by_loop(x, block.dt_proj(dt), block.A_log, B, C) + block.D * x
    truth = F.linear(y * F.silu(z), block.out_proj.weight)
    torch.testing.assert_close(block(tokens), truth)

    changed = tokens.clone()
    changed[:, 5:] += 1
    torch.testing.assert_close(block(changed)[:, :5], truth[:, :5])


def test_start() -> None:
    block = Mamba(32)
    torch.testing.assert_close(block.A_log.exp(), torch.arange(1.0, 17.0).expand(64, 16))
    assert block.dt_rank == 2 and (block.D == 1).all()
