"""No file without a check: what was exported answers as the model does, at sizes it was not captured with."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from crispseg.errors import UserError
from crispseg.export.capture import Size
from crispseg.models.base import SegmentationModel
from crispseg.reading import reason

Answer = Callable[[Tensor], Tensor]  # raw pixels (N, bands, H, W) -> what the exported program gives

# The largest relative error (norm of the difference over norm of the truth; for class ids, the share of pixels that
# differ) of a file that is put in place. The sums of float16 are the model's own, in float32.
BOUNDS = {"float32": 1e-4, "float16": 5e-2}
IDS_BOUNDS = {"float32": 1e-3, "float16": 5e-2}
# Where the model's own float32 is further from float64 than that, the file may be so many times as far from the model,
# up to where a map would show it.
_TIMES_ITS_ROUNDING, _COARSEST = 4.0, 1e-2
_SIDES = (64, 200)  # of the images that are tried, where sizes are free
_TRIES = 3


class Check(NamedTuple):
    shape: tuple[int, ...]
    error: float


def check(answer: Answer, truth: nn.Module, model: SegmentationModel, size: Size, bound: float) -> list[Check]:
    """Compare the two on images of random sizes; raises a UserError where they are further apart than `bound`, and
    than the model's own rounding explains."""
    checks = []
    for image in _images(model, size):
        shape = tuple(image.shape)
        with torch.no_grad():
            expected = truth(image)
        try:
            found = answer(image)
        except Exception as problem:  # whatever a runtime raises, the file is of no use
            raise UserError(
                f"the exported model fails on an image of {shape[3]} x {shape[2]} px, batch {shape[0]}: "
                f"{reason(problem)}{_way_out(size)}"
            ) from problem
        error = _difference(found, expected)
        if not (error <= bound or error <= min(_COARSEST, _TIMES_ITS_ROUNDING * _rounding(truth, image, expected))):
            raise UserError(
                f"the exported model is not the model: relative error {error:.1e} on an image of {shape[3]} x "
                f"{shape[2]} px, batch {shape[0]}; allowed is {bound:.0e}{_way_out(size)}"
            )
        checks.append(Check(shape, error))
    return checks


def _images(model: SegmentationModel, size: Size) -> Iterator[Tensor]:
    draw = random.Random(model.name)
    numbers = torch.Generator().manual_seed(0)
    mean, std = (torch.tensor(values)[:, None, None] for values in (model.info.mean, model.info.std))
    for number in range(_TRIES if size.dynamic else 1):
        batch, height, width = size
        shape = (
            batch or number + 1,
            model.in_channels,
            height or draw.randint(*_SIDES),
            width or draw.randint(*_SIDES),
        )
        yield mean + std * torch.randn(shape, generator=numbers)


def _rounding(truth: nn.Module, image: Tensor, expected: Tensor) -> float:
    """How far the model's own answer is from that of its float64 twin."""
    if not expected.is_floating_point():
        return 0.0
    with torch.no_grad():
        return _difference(expected, copy.deepcopy(truth).double()(image.double()))


def _difference(found: Tensor, expected: Tensor) -> float:
    if found.shape != expected.shape:
        return float("inf")
    if not expected.is_floating_point():
        return (found != expected).double().mean().item()
    wide = expected.double()
    error = ((found.double() - wide).norm() / wide.norm().clamp(min=1e-300)).item()
    return error if error == error else float("inf")  # NaN


def _way_out(size: Size) -> str:
    return "; give --size HEIGHT WIDTH to export it for one size" if 2 in size.dynamic or 3 in size.dynamic else ""
