"""What the peers share besides blocks: how their options are read and their authors' checkpoints renamed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from crispseg import config
from crispseg.models.base import SegmentationModel
from crispseg.models.options import split_options

T = TypeVar("T")

Renames = tuple[tuple[str, str], ...]  # (regular expression, replacement), applied in turn


class Peer(SegmentationModel):
    """One of the networks CRISP is compared with."""

    authors_names: ClassVar[Renames] = ()

    def from_authors(self, name: str, tensor: Tensor) -> Tensor:
        """The authors' tensor as ours; `name` is already our name."""
        return tensor


def read_options(cls: type[T], options: Mapping[str, Any]) -> T:
    """A network's config from the options of `create_model`."""
    (fields,) = split_options(options, cls)
    return config.build(cls, fields)
