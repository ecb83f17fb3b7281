"""Any model, made fast for evaluation."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from crispseg.errors import UserError
from crispseg.fused.convolutions import prepare_convolutions
from crispseg.fused.fold import fold_batchnorms
from crispseg.fused.graphs import GraphCache
from crispseg.ops.common.precision import widened
from crispseg.ops.compile_ahead import expect_work
from crispseg.threads import one_thread

if TYPE_CHECKING:
    from crispseg.models.base import SegmentationModel

_PRECISIONS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Fused(nn.Module):
    """Image (B, bands, H, W) -> logits (B, classes, H, W), in float32 at least; for evaluation only.

    A snapshot of the model it was made from: what happens to that model's weights afterwards is not seen. Its forward
    pass is the model's own. `as_written` names the parts that have no fused form and run as they are written, but with
    BatchNorms folded and weights cast.
    """

    def __init__(
        self,
        network: nn.Module,
        model: SegmentationModel,
        dtype: torch.dtype,
        as_written: tuple[str, ...],
        graphs: bool,
    ) -> None:
        super().__init__()
        self.dtype, self.as_written = dtype, as_written
        self.takes_any_image = any(getattr(part, "takes_any_image", False) for part in network.modules())
        self.name, self.info = model.name, model.info
        self.num_classes, self.in_channels = model.num_classes, model.in_channels
        self.normalises = model.normalises
        self.network = network.requires_grad_(False)
        self.graphs = GraphCache(self._compute) if graphs else None
        self.eval()

    def train(self, mode: bool = True) -> Fused:
        if mode:
            raise UserError("a fused model only evaluates; train the model it was made from and call fused() again")
        return super().train(False)

    def _apply(self, fn: Any, recurse: bool = True) -> Fused:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.graphs is not None:
            self.graphs = GraphCache(self._compute)  # the recorded ones read the weights where they were
        return self

    @torch.no_grad()
    def forward(self, image: Tensor) -> Tensor:
        if not image.is_cuda:
            return self._compute(image)
        if self.graphs is not None and not torch.cuda.is_current_stream_capturing():
            return self.graphs(image)
        with torch.cuda.device_of(image):  # Triton launches on the current device, wherever its tensors are
            return self._compute(image)

    @torch.no_grad()
    def _compute(self, image: Tensor) -> Tensor:
        if not self.takes_any_image:
            image = image.to(self.dtype, memory_format=torch.channels_last)
        with torch.autocast(image.device.type, enabled=False):
            return widened(self.network(image))

    def extra_repr(self) -> str:
        return f"as written: {', '.join(self.as_written) or 'nothing'}"


def fuse(model: SegmentationModel, precision: torch.dtype | None = None, graphs: bool = True) -> Fused:
    """See `SegmentationModel.fused`."""
    if model.training:
        raise UserError("this model is in training mode, and a fused one only evaluates; call eval() on it first")
    weight = next(model.parameters())
    dtype = precision or weight.dtype
    if dtype not in _PRECISIONS:
        raise UserError(f"a model cannot be fused in {dtype}; use torch.float32, torch.bfloat16 or torch.float16")
    if graphs:
        expect_work(weight.device)
    whole = copy.deepcopy(model).to("cpu", torch.float64)  # so that folding rounds nothing
    with torch.no_grad(), one_thread():
        fold_batchnorms(whole, model.in_channels)
        network, as_written = _network(whole, dtype)
    return Fused(network.to(weight.device), model, dtype, as_written, graphs)


def _network(model: SegmentationModel, dtype: torch.dtype) -> tuple[SegmentationModel, tuple[str, ...]]:
    """The model with the fused parts in their places and the rest cast, and the names of the parts that make the rest.

    A part says itself what takes its place, by a method `for_evaluation(dtype)`: a module that computes the same.
    """
    for name in model.training_only:
        setattr(model, name, None)
    fused = {name: part.for_evaluation(dtype) for name, part in _declared(model)}
    for name in fused:
        _put(model, name, nn.Identity())
    as_written = tuple(name for name, child in model.named_children() if any(True for _ in child.parameters()))
    prepare_convolutions(model)
    model.to(dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
    for name, part in fused.items():
        _put(model, name, part)
    return model, as_written


def wholly_fused(model: nn.Module) -> bool:
    """Whether `fuse` leaves none of the model's weights in a part that runs as it is written."""
    parts = tuple(f"{name}." for name in (*dict(_declared(model)), *getattr(model, "training_only", ())))
    names = [name for name, _ in model.named_parameters()]
    return bool(names) and all(name.startswith(parts) for name in names)


def _declared(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The outermost parts that say what takes their place."""
    for name, child in module.named_children():
        if hasattr(child, "for_evaluation"):
            yield prefix + name, child
        else:
            yield from _declared(child, f"{prefix}{name}.")


def _put(model: nn.Module, name: str, part: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, part)
