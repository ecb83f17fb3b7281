"""The operator as the network calls it: its shapes, random inputs, gradients, the bytes it moves and its truth."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from crispseg.bench.check import OPERATOR_BOUNDS, relative_error
from crispseg.bench.modes import Function, Tensors, compiled
from crispseg.bench.settings import DTYPES, Settings
from crispseg.models.vssd import VARIANTS
from crispseg.ops import Gates, ncssd

DIRECTIONS = ("forward", "forward+backward")
_PARAMETER_BOUND = 1e-2
_BACKBONE = VARIANTS["vssd_tiny"]


class Shape(NamedTuple):
    batch: int
    tokens: int
    heads: int
    width: int  # P
    state: int  # N


def shape_at(stage: int, size: int, batch: int) -> Shape:
    """What the operator gets in that stage of a CRISP-tiny, for images of that size."""
    side = -(-size // 2 ** (stage + 1))
    heads = _BACKBONE.heads[stage - 1]
    return Shape(batch, side * side, heads, _BACKBONE.expand * _BACKBONE.widths[stage - 1] // heads, _BACKBONE.state)


def random_inputs(shape: Shape, precision: str, direction: str, settings: Settings, seed: int) -> Tensors:
    """v, B and C side by side in one tensor, as in the network; rho, D and DCO's gates. The output's gradient comes
    before them where there is a backward pass."""
    generator = torch.Generator(settings.device).manual_seed(seed)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator, device=settings.device)

    batch, tokens, heads, width, state = shape
    mixed = draw(batch, tokens, heads * width + 2 * state).to(DTYPES[precision])
    rho = 0.3 * draw(batch, tokens, heads).exp()
    gates = [0.3 * draw(n) for n in (heads, heads, width, width)]
    inputs = (mixed, rho, draw(heads), *gates)
    return inputs if direction == "forward" else (draw(batch, tokens, heads, width), *inputs)


def least_bytes(shape: Shape, precision: str, direction: str) -> int:
    """Bytes moved if each tensor is read or written once per pass; the few of D and the gates are left out."""
    batch, tokens, heads, width, state = shape
    per_token = (heads * width + 2 * state) * DTYPES[precision].itemsize + 4 * heads  # v, B, C; rho in float32
    inputs, output = batch * tokens * per_token, batch * tokens * heads * width * 4
    # backward reads the inputs and the output's gradient, and writes a gradient for each input
    return inputs + output if direction == "forward" else 3 * inputs + 2 * output


def function(backend: str | None, shape: Shape, direction: str, compile_it: bool) -> Function:
    """Takes `random_inputs`; gives the output, and with "backward" the gradients of all inputs."""
    heads, width, state = shape.heads, shape.width, shape.state

    def forward(mixed: Tensor, rho: Tensor, d: Tensor, *gates: Tensor) -> Tensor:
        v, b, c = mixed.split([heads * width, state, state], dim=-1)
        return ncssd(v.unflatten(-1, (heads, width)), b, c, rho, d, Gates(*gates), backend=backend)  # v (B, L, H, P)

    run = compiled(forward) if compile_it else forward

    def with_gradients(output_gradient: Tensor, *inputs: Tensor) -> Tensors:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in inputs]
            y = run(*leaves)
            return (y.detach(), *torch.autograd.grad(y, leaves, output_gradient.to(y.dtype)))

    return with_gradients if direction != "forward" else lambda *inputs: (run(*inputs),)


def truth(shape: Shape, direction: str, inputs: Tensors) -> Tensors:
    """The reference in float64."""
    return function("reference", shape, direction, False)(*(x.double() for x in inputs))


def error(precision: str, found: Tensors, true: Tensors) -> float:
    """The relative error of the output and of the tokens' gradients; those of D and the gates may be off by 1e-2.

    These are sums over all tokens that nearly cancel, for a single token wholly. In float32 the formulas themselves
    lose three digits there; so what is below a thousandth of all of them together is measured by that thousandth.
    """
    tokens, parameters = relative_error(found[:3], true[:3]), 0.0
    if len(true) > 3:
        together = float(torch.cat([x.flatten() for x in true[3:]]).norm())
        parameters = relative_error(found[3:], true[3:], 1e-3 * together)
    return max(tokens, parameters * OPERATOR_BOUNDS[precision] / _PARAMETER_BOUND)


def operator_error(precision: str, settings: Settings) -> float | None:
    """The relative error, on this device, of the operator that models get; None if not finite."""
    shape = Shape(2, 577, 2, 32, 16)
    inputs = random_inputs(shape, precision, "forward", settings, seed=5)
    with torch.no_grad():
        found = function(None, shape, "forward", False)(*inputs)
        found_error = relative_error(found, truth(shape, "forward", inputs))
    return found_error if found_error < float("inf") else None
