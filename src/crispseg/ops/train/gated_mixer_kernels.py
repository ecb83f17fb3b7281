"""The gated mixer with gradients, from Triton kernels that others use too; `gated_mixer.py` says what it computes.

Forward: the convolution, the sums, the read-out, then LayerNorm and gate in one. Backward: norm and gate in one, the
mixing's three sweeps, the gain rho = softplus(dt + bias) exp(log A), which is made again from dt, and the convolution:

    ddt = drho exp(log A) sigmoid(dt + bias)    dbias = sum ddt    dlog A = sum drho rho
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.column_sums import add_column_parts
from crispseg.ops.common.custom import custom_op, differentiable, gradients_of_first
from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options
from crispseg.ops.common.hardware import multiprocessors
from crispseg.ops.infer.gated_mixer import FLAT, Mixing
from crispseg.ops.maps import depthwise_gradients, depthwise_kernels, normalize_kernels
from crispseg.ops.maps.depthwise_kernels import Depthwise
from crispseg.ops.maps.normalize_kernels import Rows, places_of
from crispseg.ops.nc_ssd import kernels as ncssd_kernels
from crispseg.ops.nc_ssd.backward import Problem
from crispseg.ops.nc_ssd.backward import gradients as mixing_gradients
from crispseg.ops.nc_ssd.launch import empty_sums, read_out, sum_states, takes
from crispseg.ops.train.gated_mixer import convolve_mix_gate

_INPUTS = f"Tensor projected, Tensor conv_weight, Tensor conv_bias, {FLAT}"
_TENSORS = 12  # of these
_KEPT = 6  # tensors for the backward pass, beside the inputs
_LARGEST_WIDTH = 4096  # channels that one program can normalise
_GAINS = 1024  # that a program works on at a time
_WAVES = 2  # programs per multiprocessor, of the kernel that leaves parts to be added


@convolve_mix_gate.unless
def why_not(projected: Tensor, conv_weight: Tensor, conv_bias: Tensor, mixing: Mixing) -> str | None:
    inner, parameters = len(mixing.norm.weight), (conv_weight, conv_bias, *mixing[:3], *mixing.gates, *mixing.norm[:2])
    supported = inner % len(mixing.d) == 0 and inner <= _LARGEST_WIDTH
    if supported:
        _, xbc, dt = mixing.split(projected, len(conv_weight))
        supported = takes(*mixing.tokens(xbc.flatten(1, 2)), dt, parameters, mixing.rule)
    return None if supported else "sizes, types or a rule that it does not know"


@convolve_mix_gate.kernel
def _(projected: Tensor, conv_weight: Tensor, conv_bias: Tensor, mixing: Mixing) -> Tensor:
    return _forward(projected, conv_weight, conv_bias, *mixing.flat)[0]


def _like_all(projected: Tensor, conv_weight: Tensor, conv_bias: Tensor, *flat: Any) -> tuple[Tensor, ...]:
    mixing = Mixing.of_flat(*flat)
    batch, *size, _ = projected.shape
    inner, mixed = len(mixing.norm.weight), len(conv_weight)
    out, xbc = (projected.new_empty(batch, *size, width) for width in (inner, mixed))
    y = out.new_empty(out.shape, dtype=torch.float32)
    return out, xbc, y, *empty_sums(out, batch, (mixed - inner) // 2, inner, mixing.rule.fusion == "normalized")


@custom_op("convolve_mix_gate", like=_like_all, schema=f"({_INPUTS}) -> ({', '.join(['Tensor'] * (1 + _KEPT))})")
def _forward(projected: Tensor, conv_weight: Tensor, conv_bias: Tensor, *flat: Any) -> tuple[Tensor, ...]:
    """The result and what the backward pass needs: xbc convolved, the tokens before their norm, kv, k, q, mu."""
    mixing = Mixing.of_flat(*flat)
    z, raw, dt = mixing.split(projected, len(conv_weight))
    xbc = depthwise_kernels.forward(raw, Depthwise(conv_weight, conv_bias, activation="silu"))
    v, b, c = mixing.tokens(xbc.flatten(1, 2))
    gain = mixing.dt_bias, mixing.a_log
    states = sum_states(v, b, c, dt.flatten(1, 2), mixing.d, mixing.gates, mixing.rule, gain)
    # Neither y is rounded nor its gradient: D's is what little is left of a sum over all tokens. And in raw fusion y
    # grows with the number of tokens, beyond float16.
    y = read_out(v, b, c, states, mixing.rule.fusion == "normalized").view(z.shape)
    out = normalize_kernels.layer_norm(y, *mixing.norm, gate=z)
    return out, xbc, y, states.kv, states.k, states.q, states.mu


@custom_op(
    "convolve_mix_gate_backward",
    like=gradients_of_first(_TENSORS),
    schema=f"(Tensor gradient, {_INPUTS}, Tensor xbc, Tensor y, Tensor kv, Tensor k, Tensor q, Tensor mu) -> Tensor[]",
)
def _backward(
    gradient: Tensor, projected: Tensor, conv_weight: Tensor, conv_bias: Tensor, *flat_and_kept: Any
) -> list[Tensor]:
    """Of what is given, but for gates that are not. Those of z, xbc and dt are written where they belong at once."""
    mixing, (xbc, y, *sums) = Mixing.of_flat(*flat_and_kept[:-_KEPT]), flat_and_kept[-_KEPT:]
    normalized, skip_before = mixing.rule.flags
    z, raw, dt = mixing.split(projected, len(conv_weight))
    result = torch.empty(projected.shape, dtype=raw.dtype, device=raw.device)
    dz, draw, _ = mixing.split(result, len(conv_weight))
    dy, *of_norm = normalize_kernels.layer_norm_gradients(gradient, y, *mixing.norm, gate=(z, dz))
    v, b, c = mixing.tokens(xbc.flatten(1, 2))
    rho = gains(dt, mixing.dt_bias, mixing.a_log)
    mean_of_skip = skip_before and mixing.gates.use_mean
    problem = Problem(v, b, c, rho.flatten(1, 2), mixing.d, mixing.gates, normalized, mean_of_skip, *sums)
    dxbc = torch.empty_like(xbc, memory_format=torch.contiguous_format)
    _, _, _, drho, dd, *of_gates = mixing_gradients(problem, dy.view(v.shape), dxbc.flatten(1, 2))
    of_dt = result[..., z.shape[-1] + raw.shape[-1] :]
    of_gain = gain_gradients(drho, dt, mixing.dt_bias, mixing.a_log, of_dt)
    convolution = Depthwise(conv_weight, conv_bias, activation="silu")
    _, *of_convolution = depthwise_gradients.backward(dxbc, raw, convolution, out=draw)
    return [result, *of_convolution, *of_gain, dd, *of_gates, *of_norm]


def _formula(projected: Tensor, conv_weight: Tensor, conv_bias: Tensor, *flat: Any) -> Tensor:
    return convolve_mix_gate.formula(projected, conv_weight, conv_bias, Mixing.of_flat(*flat))


differentiable(_forward, _backward, convolve_mix_gate, formula=_formula)


@triton.jit
def _gains(
    dt, dt_bias, a_log, rho, count, distance,
    ALIGN: tl.constexpr, H: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    after_the_kernel_before(DEPENDENT)
    first = tl.program_id(0).to(tl.int64) * ROWS
    rows, head = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    inside = (rows < count - first)[:, None] & (head < H)[None, :]
    x = tl.load(dt + places_of(first, rows, head, distance, ALIGN), mask=inside, other=0.0).to(tl.float32)
    x += tl.load(dt_bias + head, mask=head < H, other=0.0).to(tl.float32)[None, :]
    a = tl.exp(tl.load(a_log + head, mask=head < H, other=0.0).to(tl.float32))[None, :]
    tl.store(rho + first * H + rows[:, None] * H + head[None, :], ncssd_kernels.softplus(x) * a, mask=inside)


@triton.jit
def _gain_gradients(
    drho, dt, dt_bias, a_log, ddt, parts, count, blocks, distance, d_distance,
    ALIGN: tl.constexpr, DALIGN: tl.constexpr, H: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WRITTEN: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """ddt, of WRITTEN columns of which those beyond H are zero; this program's part of the parameters' gradients."""
    after_the_kernel_before(DEPENDENT)
    programs = tl.num_programs(0)
    first = tl.program_id(0).to(tl.int64) * ROWS
    rows, head = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    used = head < H
    bias = tl.load(dt_bias + head, mask=used, other=0.0).to(tl.float32)[None, :]
    a = tl.exp(tl.load(a_log + head, mask=used, other=0.0).to(tl.float32))[None, :]
    dbias = tl.zeros((ROWS, COLUMNS), tl.float32)
    dlog = tl.zeros((ROWS, COLUMNS), tl.float32)
    for _ in range(tl.program_id(0), blocks, programs):
        inside = (rows < count - first)[:, None] & used[None, :]
        x = tl.load(dt + places_of(first, rows, head, distance, ALIGN), mask=inside, other=0.0).to(tl.float32) + bias
        g = tl.load(drho + first * H + rows[:, None] * H + head[None, :], mask=inside, other=0.0) * a
        d = g * tl.sigmoid(x)
        written = (rows < count - first)[:, None] & (head < WRITTEN)[None, :]
        tl.store(ddt + places_of(first, rows, head, d_distance, DALIGN), d.to(ddt.dtype.element_ty), mask=written)
        dbias += d
        dlog += g * ncssd_kernels.softplus(x)
        first += programs * ROWS
    parts += tl.program_id(0) * 2 * H + head
    tl.store(parts, tl.sum(dbias, 0), mask=used)
    tl.store(parts + H, tl.sum(dlog, 0), mask=used)


def gains(dt: Tensor, dt_bias: Tensor, a_log: Tensor) -> Tensor:
    """rho (..., heads) in float32."""
    rho = torch.empty(dt.shape, dtype=torch.float32, device=dt.device)
    (given, distance, align), heads = Rows.of(dt), dt.shape[-1]
    columns = triton.next_power_of_2(heads)
    rows = max(1, _GAINS // columns)
    _gains[(triton.cdiv(given.shape[0], rows),)](
        given, dt_bias, a_log, rho, given.shape[0], distance,
        ALIGN=align, H=heads, ROWS=rows, COLUMNS=columns, num_warps=4, **launch_options(dt.device),
    )  # fmt: skip
    return rho


def gain_gradients(drho: Tensor, dt: Tensor, dt_bias: Tensor, a_log: Tensor, ddt: Tensor) -> tuple[Tensor, Tensor]:
    """Of dt_bias and a_log (heads,), given rho's; dt's is written to ddt, whose columns beyond the heads are zeroed."""
    (given, distance, align), heads = Rows.of(dt), dt.shape[-1]
    result = Rows.to(ddt)
    columns = triton.next_power_of_2(ddt.shape[-1])
    rows = max(1, _GAINS // columns)
    count = given.shape[0]
    blocks = triton.cdiv(count, rows)
    programs = min(blocks, _WAVES * multiprocessors(dt.device))
    parts = torch.empty((programs, 2, heads), dtype=torch.float32, device=dt.device)
    _gain_gradients[(programs,)](
        drho, given, dt_bias, a_log, result.tensor, parts, count, blocks, distance, result.distance,
        ALIGN=align, DALIGN=result.align, H=heads, ROWS=rows, COLUMNS=columns, WRITTEN=ddt.shape[-1], num_warps=4,
        **launch_options(dt.device),
    )  # fmt: skip
    of_bias, of_log = torch.empty_like(dt_bias), torch.empty_like(a_log)
    add_column_parts(parts.flatten(1), of_bias, of_log)
    return of_bias, of_log
