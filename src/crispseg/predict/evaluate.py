"""Runs the model on tiles: normalises, turns and flips, and gives whole-number probabilities."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crispseg.errors import UserError, unknown
from crispseg.models.base import SegmentationModel
from crispseg.ops.common.hardware import multiplies_bfloat16

CERTAIN = 32767  # the whole number that stands for probability one; the largest of 16 bits
TTA = ("none", "flip", "d4")
PRECISIONS = ("float32", "bfloat16")


class View(NamedTuple):
    """One way to show a tile to the model."""

    flips: tuple[int, ...]
    transposed: bool

    def show(self, x: Tensor) -> Tensor:
        x = x.flip(self.flips) if self.flips else x
        return x.transpose(-1, -2) if self.transposed else x

    def undo(self, x: Tensor) -> Tensor:
        x = x.transpose(-1, -2) if self.transposed else x
        return x.flip(self.flips) if self.flips else x


def views(tta: str) -> list[View]:
    """none: the tile itself; flip: its four mirror images; d4: these and their quarter turns."""
    if tta not in TTA:
        raise unknown("test-time augmentation", tta, TTA)
    if tta == "none":
        return [View((), False)]
    turns = (False, True) if tta == "d4" else (False,)
    return [View(flips, turn) for turn, flips in itertools.product(turns, [(), (-1,), (-2,), (-2, -1)])]


class Evaluator:
    """Call it with raw (bands, h, w) arrays of one size: gives (n, classes, h, w) whole numbers up to CERTAIN.

    It runs the model fused, unless told not to because somebody listens to the model's own layers. `keep`: the fused
    one is kept as long as the model is there, for the next to ask.
    """

    def __init__(
        self,
        model: SegmentationModel,
        device: torch.device,
        tta: str = "none",
        precision: str = "float32",
        fused: bool = True,
        keep: bool = False,
    ):
        if precision not in PRECISIONS:
            raise unknown("precision", precision, PRECISIONS)
        check_card(model)
        self.model = model.to(device).eval()
        self.network = _fastest(self.model, device, precision, keep) if fused else self.model
        self.device = device
        self.views = views(tta)
        self.precision = precision
        self.normalisation = model.info.normalisation(device)

    @torch.inference_mode()
    def __call__(self, tiles: Sequence[NDArray[Any]], filled_to: int = 0) -> Tensor:
        """Batches smaller than `filled_to` are filled up with empty tiles, so that the same kernels run."""
        x = self._normalised(self._stacked(tiles), filled_to)
        total = self._probabilities(self.views[0], x)
        for view in self.views[1:]:
            total += self._probabilities(view, x)
        return whole_numbers_(total, len(self.views))[: len(tiles)]

    def _stacked(self, tiles: Sequence[NDArray[Any]]) -> Tensor:
        """Page-locked where a GPU is to fetch them while it computes."""
        kind = torch.from_numpy(tiles[0]).dtype
        host = torch.empty(len(tiles), *tiles[0].shape, dtype=kind, pin_memory=self.device.type == "cuda")
        np.stack(tiles, out=host.numpy())
        return host

    def _normalised(self, host: Tensor, filled_to: int) -> Tensor:
        x = host.to(self.device, non_blocking=True).to(torch.float32)
        if len(x) < filled_to:
            x = torch.cat([x, x.new_zeros(filled_to - len(x), *x.shape[1:])])
        return x if self.model.normalises else self.normalisation.apply_(x)

    def _probabilities(self, view: View, x: Tensor) -> Tensor:
        shown = view.show(x)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            logits = self.network(shown)
        wanted = (len(x), self.model.num_classes, *shown.shape[-2:])
        if not isinstance(logits, Tensor) or logits.shape != wanted:
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise UserError(f"model {self.model.title!r} returned {got} where {wanted} was expected")
        return view.undo(self.model.probabilities(logits))


def whole_numbers_(probabilities: Tensor, views: int = 1) -> Tensor:
    """Sums of so many views' probabilities as whole numbers up to CERTAIN, which the blender adds up; in place."""
    # NaN becomes 0, which the blender tells from every honest score
    return torch.nan_to_num_(probabilities.mul_(CERTAIN / views)).add_(0.5).to(torch.int16)


def _fastest(model: SegmentationModel, device: torch.device, precision: str, keep: bool) -> Callable[[Tensor], Tensor]:
    """The fused model; in half precision on a CPU that has no instructions for it, the model as it is."""
    half = precision == "bfloat16"
    slow = half and device.type == "cpu" and not multiplies_bfloat16(device)
    if slow or next(model.parameters(), None) is None:
        return model
    dtype = torch.bfloat16 if half else torch.float32
    return _kept(model, dtype) if keep else model.fused(dtype)


_KEPT: weakref.WeakKeyDictionary[SegmentationModel, tuple[Any, Any]] = weakref.WeakKeyDictionary()


def _kept(model: SegmentationModel, dtype: torch.dtype) -> Any:
    """The fused model of the call before, if nothing was done to the weights since."""
    tensors = [*model.parameters(), *model.buffers()]
    if any(x.is_inference() for x in tensors):  # nobody counts what is done to these
        return model.fused(dtype)
    state = (dtype, [(x.data_ptr(), x._version) for x in tensors])
    before, network = _KEPT.get(model, (None, None))
    if before != state:
        network = model.fused(dtype)
        _KEPT[model] = (state, network)
    return network


def check_card(model: SegmentationModel) -> None:
    """A model can be used on raw pixels only if its card says how they were normalised."""
    info = model.info
    if len(info.mean) != model.in_channels or len(info.std) != model.in_channels:
        raise UserError(
            f"model {model.title!r} takes {model.in_channels} bands but its card has {len(info.mean)} means and "
            f"{len(info.std)} standard deviations, so nobody knows how to show it raw pixels; `crisp train` writes "
            "both, and in Python model.info = ModelInfo(mean=..., std=...) does before model.save"
        )
    if any(not s > 0 for s in info.std):
        raise UserError(f"model {model.title!r} has a standard deviation that is not positive: {info.std}")
    if info.classes and len(info.classes) != model.num_classes:
        raise UserError(f"model {model.title!r} has {model.num_classes} classes but its card names {len(info.classes)}")
    if model.num_classes > 255:
        raise UserError(f"a class map holds at most 255 classes, and model {model.title!r} has {model.num_classes}")
