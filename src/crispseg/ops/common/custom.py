"""Functions registered as operators of torch, so that torch.compile takes them as they are and autograd knows them.

    @custom_op("layer_norm", like=lambda x, *rest: x.new_empty(x.shape))
    def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor: ...

    @custom_op("layer_norm_backward", like=gradients_of_first(3))
    def _backward(gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> list[Tensor]: ...

    differentiable(_layer_norm, _backward, layer_norm)

Types say what the schema is. Bodies run on the device of their first tensor and choose their precisions themselves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from crispseg.ops.common.precision import without_autocast
from crispseg.ops.dispatch import Operator

F = TypeVar("F", bound=Callable[..., Any])
Remember = Callable[[Sequence[Any], Sequence[Tensor]], Sequence[Any]]


def custom_op(
    name: str, like: Callable[..., Any], changes: Sequence[str] = (), schema: str | None = None
) -> Callable[[F], F]:
    """Registers crispseg::name. `like` gives empty results of the right shapes; `changes` are arguments written to."""

    def register(function: F) -> F:
        made: Any = torch.library.custom_op(
            f"crispseg::{name}", _there(without_autocast(function)), mutates_args=changes, schema=schema
        )
        made.register_fake(like)
        return made

    return register


def _there(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def on_its_device(first: Any, *args: Any) -> Any:
        with torch.cuda.device_of(first):
            return function(first, *args)

    return on_its_device


def all_but_the_result(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Sequence[Any]:
    return *inputs, *outputs[1:]


def all_there_is(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Sequence[Any]:
    return *inputs, *outputs


def gradients_of_first(count: int) -> Callable[..., list[Tensor]]:
    """What a backward operator gives, empty: gradients of those of its first inputs that are given."""
    return lambda gradient, *inputs: [x.new_empty(x.shape) for x in inputs[:count] if x is not None]


def differentiable(
    op: Any,
    backward: Callable[..., Any],
    operator: Operator[..., Any],
    *,
    remember: Remember = all_but_the_result,
    formula: Callable[..., Any] | None = None,
    plain: Callable[..., Any] | None = None,
) -> None:
    """Gives a custom operator its gradients.

    Of its outputs the first has one; the others are what backward needs. backward(gradient, *remembered) gives those of
    the first inputs that are given tensors. Where it fails on this machine, autograd does it with `formula`, which
    takes the custom operator's inputs (those of `operator` if it is not given); or, where the inputs are not all
    remembered, `plain` does, which is backward in plain torch.
    """

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = (output,) if isinstance(output, Tensor) else tuple(output)
        kept = remember(inputs, outputs)
        ctx.given = [isinstance(x, Tensor) for x in inputs]
        ctx.whole = len(kept) >= len(inputs) and all(x is y for x, y in zip(inputs, kept, strict=False))
        ctx.others = [None if isinstance(x, Tensor) else x for x in kept]
        ctx.places = [i for i, x in enumerate(kept) if isinstance(x, Tensor)]
        ctx.save_for_backward(*(kept[i] for i in ctx.places))
        ctx.mark_non_differentiable(*outputs[1:])
        ctx.set_materialize_grads(False)

    def differentiate(ctx: Any, gradient: Tensor | None, *others: None) -> tuple[Any, ...]:
        count = len(ctx.given)
        if gradient is None:
            return (None,) * count
        kept = list(ctx.others)
        for place, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
            kept[place] = tensor
        found = _gradients(gradient, kept, kept[:count] if ctx.whole else None)
        made = iter([found] if isinstance(found, Tensor) else found)
        return tuple(next(made, None) if given else None for given in ctx.given)

    def _gradients(gradient: Tensor, kept: list[Any], inputs: list[Any] | None) -> Any:
        if torch.compiler.is_compiling():
            return backward(gradient, *kept)
        try:
            return backward(gradient, *kept)
        except Exception as error:
            if inputs is None:
                assert plain is not None, "what does not keep its inputs needs its gradients in plain torch"
                operator.give_up_unless_wrong(error)
                return plain(gradient, *kept)
            return operator.gradients_by_formula(error, formula, gradient, inputs)

    op.register_autograd(differentiate, setup_context=setup)
