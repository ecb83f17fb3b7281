"""Building a model that a file describes, without making more than the file could fill.

A few digits in a config.json can ask for any size. While the model is built, every new tensor is first measured on the
meta device, where it costs nothing; once there are more, or larger ones, than the weight file holds, building stops.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from crispseg.errors import UserError
from crispseg.reading import reason

_SPARE_TENSORS, _SPARE_NUMBERS = 2_000, 1 << 22  # for what is made on the way to a weight: index tables, drawn values
_FOLD = 4  # initial values are often drawn in several steps


class Held(NamedTuple):
    """A tensor in a file."""

    shape: tuple[int, ...]
    dtype: str


class Budget(TorchFunctionMode):
    """Within the block no more is made than fits into a file of these tensors."""

    def __init__(self, held: Mapping[str, Held], where: str) -> None:
        super().__init__()
        self._tensors = _FOLD * len(held) + _SPARE_TENSORS
        self._numbers = _FOLD * sum(math.prod(tensor.shape) for tensor in held.values()) + _SPARE_NUMBERS
        self._where = where
        self._makers = _device_constructors()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._makers:
            self._tensors -= 1
            if func not in _FROM_VALUES:
                self._numbers -= func(*args, **{**kwargs, "device": "meta"}).numel()
            if self._tensors < 0 or self._numbers < 0:
                raise UserError(f"{self._where} describes a larger model than its weights are of")
        return func(*args, **kwargs)


_FROM_VALUES = (torch.tensor, torch.as_tensor, torch.scalar_tensor, torch.asarray)  # their values are there already


@contextlib.contextmanager
def describing(path: os.PathLike[str]) -> Iterator[None]:
    """What torch says of sizes that do not go together is said of the file that describes them."""
    try:
        yield
    except (ArithmeticError, AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"{os.fspath(path)} describes no model that can be made: {reason(error)}") from error
