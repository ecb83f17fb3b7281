"""DCO's gates from the parameters behind them, with gradients: one launch for all four on CUDA, and one back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crispseg.ops.common.precision import widened, without_autocast
from crispseg.ops.dispatch import kernels_wanted
from crispseg.ops.nc_ssd.spec import Gates

RESIDUAL_FLOOR = 1e-4


def gates(lambda_: Tensor | None, omega: Tensor | None, s: Tensor | None, t: Tensor | None) -> Gates:
    """lambda raised by a floor; omega, s and t through tanh. lambda_, omega (H,), s, t (P,)."""
    if lambda_ is not None and omega is not None and s is not None and t is not None and _takes(lambda_, omega, s, t):
        return Gates(*_gates(lambda_, omega, s, t))
    return Gates(
        residual=None if lambda_ is None else RESIDUAL_FLOOR + widened(lambda_),
        omega=None if omega is None else torch.tanh(widened(omega)),
        s=None if s is None else torch.tanh(widened(s)),
        t=None if t is None else torch.tanh(widened(t)),
    )


def _takes(*parameters: Tensor) -> bool:
    return (
        all(x.is_cuda and x.dtype == torch.float32 for x in parameters)
        and torch.is_grad_enabled()
        and any(x.requires_grad for x in parameters)
        and kernels_wanted()
    )


# Registered as operators so that torch.compile takes them as they are; their bodies import Triton when first run.


@torch.library.custom_op(
    "crispseg::gates",
    mutates_args=(),
    schema="(Tensor lambda_, Tensor omega, Tensor s, Tensor t) -> (Tensor, Tensor, Tensor, Tensor)",
)
@without_autocast
def _gates(lambda_: Tensor, omega: Tensor, s: Tensor, t: Tensor) -> tuple[Tensor, ...]:
    from crispseg.ops.train import gates_kernels as kernels

    with torch.cuda.device_of(omega):
        return kernels.gates(lambda_, omega, s, t, RESIDUAL_FLOOR)


@_gates.register_fake
def _(*parameters: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in parameters)


@torch.library.custom_op(
    "crispseg::gates_backward",
    mutates_args=(),
    schema="(Tensor g_omega, Tensor g_s, Tensor g_t, Tensor omega, Tensor s, Tensor t) -> (Tensor, Tensor, Tensor)",
)
@without_autocast
def _gates_backward(*tensors: Tensor) -> tuple[Tensor, ...]:
    from crispseg.ops.train import gates_kernels as kernels

    with torch.cuda.device_of(tensors[0]):
        return kernels.gradients(tensors[:3], tensors[3:])


@_gates_backward.register_fake
def _(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in tensors[3:])


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:])


def _differentiate(ctx: Any, residual: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    return residual, *_gates_backward(*others, *ctx.saved_tensors)


_gates.register_autograd(_differentiate, setup_context=_remember)
