"""Folding a BatchNorm into the convolution before it, wherever a model has the two in a row."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_SIDE = 64  # of the image a model is followed with


def fold_batchnorms(model: nn.Module, bands: int) -> int:
    """Fold them in place, in a model in evaluation mode; returns how many were folded. torch's own are, and those
    that say by a method `once_folded` what is to stay in their place.

    The model is run once to see which BatchNorm reads which convolution: only where the convolution runs once and
    nothing else reads its output may the two become one.
    """
    pairs = _pairs(model, bands)
    names = {module: name for name, module in model.named_modules()}
    for conv, norm in pairs:
        _fold(conv, norm)
        parent, _, child = names[norm].rpartition(".")
        setattr(model.get_submodule(parent), child, _rest(norm))
    return len(pairs)


def _folds(module: nn.Module) -> bool:
    return type(module) is nn.BatchNorm2d or hasattr(module, "once_folded")


def _rest(norm: Any) -> nn.Module:
    return norm.once_folded() if hasattr(norm, "once_folded") else nn.Identity()


def _fold(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    assert norm.running_mean is not None and norm.running_var is not None
    scale = (norm.running_var + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight
    bias = -norm.running_mean if conv.bias is None else conv.bias - norm.running_mean
    bias = bias * scale
    if norm.bias is not None:
        bias = bias + norm.bias
    conv.weight = nn.Parameter((conv.weight * scale[:, None, None, None]).detach(), requires_grad=False)
    conv.bias = nn.Parameter(bias.detach(), requires_grad=False)


def _pairs(model: nn.Module, bands: int) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
    uses = _Uses()
    read: dict[nn.BatchNorm2d, Tensor] = {}
    runs: Counter[nn.Module] = Counter()

    def after_conv(conv: nn.Module, _: Any, output: Tensor) -> None:
        runs[conv] += 1
        uses.watch(output, conv)

    def before_norm(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        runs[norm] += 1
        read[norm] = inputs[0]  # type: ignore[index]

    hooks = []
    for module in model.modules():
        if type(module) is nn.Conv2d:
            hooks.append(module.register_forward_hook(after_conv))
        elif _folds(module) and module.running_mean is not None:
            hooks.append(module.register_forward_pre_hook(before_norm))
    weight = next(model.parameters())
    with torch.no_grad(), uses:
        model(torch.zeros(1, bands, _SIDE, _SIDE, dtype=weight.dtype, device=weight.device))
    for hook in hooks:
        hook.remove()
    found = ((uses.made_by(x), norm) for norm, x in read.items() if runs[norm] == 1 and uses.count[id(x)] == 1)
    return [(conv, norm) for conv, norm in found if conv is not None and runs[conv] == 1]


class _Uses(TorchDispatchMode):
    """Counts the operations that read a watched tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: Counter[int] = Counter()
        self._watched: dict[int, tuple[Tensor, Any]] = {}  # keeps each tensor alive, so that its id stays its own

    def watch(self, tensor: Tensor, maker: nn.Module) -> None:
        self._watched[id(tensor)] = (tensor, maker)

    def made_by(self, tensor: Tensor) -> Any:
        return self._watched.get(id(tensor), (None, None))[1]

    def _see(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in tree_leaves((args, kwargs or {})):
            if id(leaf) in self._watched:
                self.count[id(leaf)] += 1
        return func(*args, **(kwargs or {}))


# Within the class torch would wrap it, and calling what it wraps loads torch's compiler, which takes a second or two.
_Uses.__torch_dispatch__ = _Uses._see  # type: ignore[assignment, method-assign]
