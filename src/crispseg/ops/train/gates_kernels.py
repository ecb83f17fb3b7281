# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""DCO's four gates and their gradients, one launch each; `gates.py` says what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options


@triton.jit
def _tanh(x):
    """From its series near zero, where the quotient of exponentials would lose digits."""
    square = x * x
    near = x * (1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835)))))
    far = 1 - 2 / (1 + tl.exp(2 * tl.abs(x)))
    return tl.where(square < 0.0625, near, tl.where(x < 0, -far, far))


@triton.jit
def _bound(x, y, place, SIZE: tl.constexpr):
    value = tl.load(x + place, mask=place < SIZE, other=0.0)
    tl.store(y + place, _tanh(value), mask=place < SIZE)


@triton.jit
def _bound_gradient(g, y, d, place, SIZE: tl.constexpr):
    value = tl.load(y + place, mask=place < SIZE, other=0.0)
    gradient = tl.load(g + place, mask=place < SIZE, other=0.0)
    tl.store(d + place, gradient * (1 - value * value), mask=place < SIZE)


@triton.jit
def _gates(
    lambda_, omega, s, t, residual, omega_gate, s_gate, t_gate, floor,
    H: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    after_the_kernel_before(EARLY)
    place = tl.arange(0, BLOCK)
    value = tl.load(lambda_ + place, mask=place < H, other=0.0)
    tl.store(residual + place, floor + value, mask=place < H)
    _bound(omega, omega_gate, place, H)
    _bound(s, s_gate, place, P)
    _bound(t, t_gate, place, P)


@triton.jit
def _gate_gradients(
    g_omega, g_s, g_t, omega, s, t, d_omega, d_s, d_t,
    H: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    after_the_kernel_before(EARLY)
    place = tl.arange(0, BLOCK)
    _bound_gradient(g_omega, omega, d_omega, place, H)
    _bound_gradient(g_s, s, d_s, place, P)
    _bound_gradient(g_t, t, d_t, place, P)


def gates(lambda_: Tensor, omega: Tensor, s: Tensor, t: Tensor, floor: float) -> tuple[Tensor, ...]:
    given = [x.contiguous() for x in (lambda_, omega, s, t)]
    made = [torch.empty(x.shape, dtype=torch.float32, device=x.device) for x in given]
    _gates[(1,)](*given, *made, floor, **_options(omega, s))
    return tuple(made)


def gradients(gradient: Sequence[Tensor], gates: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Of omega, s and t, from those of their gates and the gates themselves."""
    found = [torch.empty_like(x) for x in gates]
    _gate_gradients[(1,)](*(x.contiguous() for x in gradient), *gates, *found, **_options(gates[0], gates[1]))
    return tuple(found)


def _options(omega: Tensor, s: Tensor) -> dict[str, Any]:
    heads, width = len(omega), len(s)
    block = triton.next_power_of_2(max(heads, width))
    return {"H": heads, "P": width, "BLOCK": block, "num_warps": 1, **launch_options(omega.device)}
