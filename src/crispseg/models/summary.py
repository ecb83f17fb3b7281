"""What a model costs: parameters, multiply-accumulates and memory, counted without computing anything.

The model runs on torch's "meta" device, where tensors have shapes but no data; one that asks for a number on its way
(`x.item()`, as somebody's own network may) runs on the CPU.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from crispseg.models.base import SegmentationModel
from crispseg.models.vssd import Stage


@dataclasses.dataclass(frozen=True)
class Part:
    name: str
    parameters: int
    macs: int
    output: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Summary:
    parameters: int
    macs: int  # of convolutions and matrix products; FlopCounterMode's total / 2
    training_macs: int  # of the forward pass in training mode, auxiliary heads included
    activation_bytes: int  # largest sum of tensors alive at once in a forward pass
    parts: tuple[Part, ...]


def summarize(model: SegmentationModel, height: int = 512, width: int = 512, batch: int = 1) -> Summary:
    """Count a forward pass over a (batch, bands, height, width) image. The model itself is left as it was."""
    try:
        return _counted(model, (batch, model.in_channels, height, width), "meta")
    except (NotImplementedError, RuntimeError):
        return _counted(model, (batch, model.in_channels, height, width), "cpu")


def _counted(model: SegmentationModel, shape: tuple[int, ...], device: str) -> Summary:
    ghost = made_on(device, model.name, model.num_classes, model.in_channels, model.options)
    image = torch.zeros(shape, device=device)
    names = _part_names(ghost)
    shapes: dict[str, tuple[int, ...]] = {}
    hooks = [
        ghost.get_submodule(name).register_forward_hook(
            lambda m, _, out, name=name: shapes.update({name: _shape(m, out)})
        )
        for name in names
    ]
    ghost.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as flops, _LiveBytes() as memory:
        ghost(image)
    for hook in hooks:
        hook.remove()
    ghost.train()
    with torch.no_grad(), FlopCounterMode(display=False) as training_flops:
        ghost(image)
    counts = flops.get_flop_counts()
    root = type(ghost).__name__
    parts = tuple(
        Part(
            name,
            _count(ghost.get_submodule(name)),
            sum(counts.get(f"{root}.{name}", {}).values()) // 2,
            shapes.get(name, ()),
        )
        for name in names
    )
    return Summary(
        parameters=_count(model),
        macs=flops.get_total_flops() // 2,
        training_macs=training_flops.get_total_flops() // 2,
        activation_bytes=memory.peak,
        parts=parts,
    )


def made_on(device: str, name: str, classes: int, bands: int, options: Mapping[str, Any]) -> SegmentationModel:
    """A fresh model to be counted. On "meta" it has no data, unless it cannot be made without."""
    from crispseg.models.registry import create_model

    try:
        with torch.random.fork_rng(devices=[]), torch.device(device):
            return create_model(name, classes, bands, **options).requires_grad_(False)
    except (NotImplementedError, RuntimeError):
        if device == "cpu":
            raise
        return made_on("cpu", name, classes, bands, options)


def _part_names(model: nn.Module) -> list[str]:
    """The rows of the table: the model's children, and under `backbone` and `head` their own, lists opened."""
    names: list[str] = []
    for name, child in model.named_children():
        names.append(name)
        if name not in ("backbone", "head"):
            continue
        for inner, module in child.named_children():
            if isinstance(module, nn.ModuleList):
                names += [f"{name}.{inner}.{i}" for i in range(len(module))]
            elif _count(module) and not isinstance(module, nn.LayerNorm):
                names.append(f"{name}.{inner}")
    return names


def _shape(module: nn.Module, output: Any) -> tuple[int, ...]:
    """The shape of a module's (first, or for the backbone last) output tensor, channels first."""
    while isinstance(output, list | tuple) and output:
        output = output[-1] if isinstance(output, list) else output[0]
    if not isinstance(output, Tensor):
        return ()
    batch, *rest = output.shape
    return (batch, rest[-1], *rest[:-1]) if isinstance(module, Stage) else (batch, *rest)


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


class _LiveBytes(TorchDispatchMode):
    """Follows which storages are alive and remembers the largest total."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self.now = 0
        self._users: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, list | tuple) else [result]:
            if isinstance(tensor, Tensor):
                self._follow(tensor)
        return result

    def _follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._users:
            self._users[key] = 0
            self.now += size
            self.peak = max(self.peak, self.now)
        self._users[key] += 1
        weakref.finalize(tensor, self._release, key, size)

    def _release(self, key: int, size: int) -> None:
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key]
            self.now -= size
