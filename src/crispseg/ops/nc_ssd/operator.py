"""NC-SSD with DCO in Triton, forward and backward, for CUDA devices (and, slowly, Triton's interpreter).

Symbols as in `reference.py` and `formula.py`; w = (1 - g) rho + g, a = (1 + t)(1 + omega), row_i = Q_i k.

Forward. One sweep over keys and values sums S = sum_j K_j (w_j V_j)^T and k = sum_j K_j in parts; one over the queries
adds the parts and sums q = sum_i Q_i / row_i, which gives mu = q^T S / L; the last reads out. As Q_i k / row_i = 1,

    out_i = Q_i^T A / row_i + a mu + (1 + s - a) mean + skip V_i,    A = (S - k mu^T) a,

where mean = mu, or mu + d mean(V) when the skip is calibrated, too (then skip = a d). Taking k mu^T out of the state
leaves only what differs from the mean to be multiplied in half precision, here and in the gradients.

Backward, with G the output's gradient, in three sweeps (formulas in `backward.py`); keys and queries are
made again from the inputs, and only inputs and sums are kept. In raw fusion k and row are absent. A row at its floor is
a constant, for which Q_i k / row_i < 1: the kernels account for that, the formulas here leave it out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crispseg.errors import UserError
from crispseg.ops.common.custom import custom_op, differentiable, gradients_of_first
from crispseg.ops.nc_ssd import formula
from crispseg.ops.nc_ssd.backward import Problem, gradients
from crispseg.ops.nc_ssd.launch import LARGEST_HEAD, LARGEST_STATE, empty_sums, read_out, sum_states, takes
from crispseg.ops.nc_ssd.spec import Gates, Rule

_INPUTS = (
    "Tensor v, Tensor b, Tensor c, Tensor rho, Tensor d, Tensor? residual, Tensor? omega, Tensor? s, Tensor? t, "
    "bool normalized, bool skip_before"
)


@formula.dispatched.unless
def _(v: Tensor, b: Tensor, c: Tensor, rho: Tensor, d: Tensor, gates: Gates, rule: Rule) -> str | None:
    return None if takes(v, b, c, rho, (d, *gates), rule) else "sizes or a rule that it does not know"


@formula.dispatched.kernel
def ncssd(v: Tensor, b: Tensor, c: Tensor, rho: Tensor, d: Tensor, gates: Gates, rule: Rule) -> Tensor:
    """See `crispseg.ops.ncssd`."""
    if not takes(v, b, c, rho, (d, *gates), rule):
        raise UserError(
            f"the triton backend takes float32, bfloat16 or float16 tensors on a CUDA device, N up to {LARGEST_STATE}, "
            f'P up to {LARGEST_HEAD} and no "unnormalized" residual; this is {v.dtype} on {v.device} with '
            f'N = {b.shape[-1]}, P = {v.shape[-1]} and {rule}: use backend="torch"'
        )
    return _forward(v, b, c, rho, d, *gates, *rule.flags)[0]


def _sums(v: Tensor, b: Tensor, c: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    batch, _, heads, width = v.shape
    sums = empty_sums(v, batch, b.shape[-1], heads * width, normalized=rest[-2])
    return v.new_empty(v.shape, dtype=torch.float32), *sums


@custom_op("ncssd", like=_sums, schema=f"({_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
def _forward(v: Tensor, b: Tensor, c: Tensor, rho: Tensor, d: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """The output and the sums that the backward pass needs: kv, k, q, mu."""
    *gates, normalized, skip_before = rest
    states = sum_states(v, b, c, rho, d, Gates(*gates), Rule.of_flags(normalized, skip_before))
    return read_out(v, b, c, states, normalized), states.kv, states.k, states.q, states.mu


@custom_op(
    "ncssd_backward",
    like=gradients_of_first(9),
    schema=f"(Tensor grad, {_INPUTS}, Tensor kv, Tensor k, Tensor q, Tensor mu) -> Tensor[]",
)
def _backward(grad: Tensor, v: Tensor, b: Tensor, c: Tensor, rho: Tensor, d: Tensor, *rest: Any) -> list[Tensor]:
    """The gradients of v, b, c, rho, d and of those gates that are given."""
    gates, (normalized, skip_before, *sums) = Gates(*rest[:4]), rest[4:]
    return gradients(Problem(v, b, c, rho, d, gates, normalized, skip_before and gates.use_mean, *sums), grad)


def _formula(v: Tensor, b: Tensor, c: Tensor, rho: Tensor, d: Tensor, *rest: Any) -> Tensor:
    *gates, normalized, skip_before = rest
    return formula.ncssd(v, b, c, rho, d, Gates(*gates), Rule.of_flags(normalized, skip_before))


differentiable(_forward, _backward, formula.dispatched, formula=_formula)
