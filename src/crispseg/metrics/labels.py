"""Label maps as the metrics take them: torch or numpy, any integer type, any device; checked first."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crispseg.errors import UserError

LabelMap: TypeAlias = Tensor | NDArray[Any]

# torch cannot compare or index with these, and a mask read as 16 bit arrives so
_WIDER = {
    torch.bool: torch.uint8,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,
}


def label_tensor(labels: LabelMap, what: str) -> Tensor:
    """`labels` as an integer tensor on the device it was on; `what` names it in an error."""
    if isinstance(labels, Tensor):
        tensor = labels.detach()
    else:
        array = np.asarray(labels)
        # torch takes no array that runs backwards or has the other byte order, and warns of a read-only one
        if min(array.strides, default=0) < 0 or not array.dtype.isnative or not array.flags.writeable:
            array = array.astype(array.dtype.newbyteorder("="), order="C")
        tensor = torch.from_numpy(array)
    if tensor.is_floating_point() or tensor.is_complex():
        raise UserError(
            f"the {what} holds {str(tensor.dtype).removeprefix('torch.')} values; give class ids as integers "
            "(take the arg-max of logits first)"
        )
    return tensor.to(_WIDER.get(tensor.dtype, tensor.dtype))


def label_pair(prediction: LabelMap, target: LabelMap) -> tuple[Tensor, Tensor]:
    """Both maps as integer tensors of one shape on the prediction's device."""
    predicted, true = label_tensor(prediction, "prediction"), label_tensor(target, "label map")
    if predicted.shape != true.shape:
        raise UserError(
            f"the prediction is {_size(predicted)} and the label map {_size(true)}; they must be of one size"
        )
    return predicted, true.to(predicted.device)


def is_ignored(target: Tensor, ignore_index: int | None) -> Tensor:
    """Where `target` carries the ignore label. A label its integer type cannot hold occurs nowhere."""
    limits = torch.iinfo(target.dtype)
    if ignore_index is None or not limits.min <= ignore_index <= limits.max:
        # comparing would wrap around: 255 == -1 in unsigned bytes
        return torch.zeros_like(target, dtype=torch.bool)
    return target == ignore_index


def compact_pair(
    predicted: Tensor, target: Tensor, num_classes: int, ignore_index: int | None
) -> tuple[Tensor, Tensor]:
    """Both as int64, with `num_classes` in place of every ignored pixel; an id out of range is an error."""
    ignored = is_ignored(target, ignore_index)
    return (
        _compact(predicted, ignored, num_classes, "prediction"),
        _compact(target, ignored, num_classes, "label map"),
    )


def _compact(labels: Tensor, ignored: Tensor, num_classes: int, what: str) -> Tensor:
    compact = labels.long().masked_fill(ignored, num_classes)
    wrong = ((compact < 0) | (compact >= num_classes)) & ~ignored
    if wrong.any():
        raise UserError(
            f"class id {int(compact[wrong][0])} in the {what} is out of range: ids must be 0 to "
            f"{num_classes - 1}; map other values to a class or to the ignore label"
        )
    return compact


def _size(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "a single value"
