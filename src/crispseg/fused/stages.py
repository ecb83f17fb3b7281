"""A backbone's feature maps on their way to a head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from crispseg.fused.layers import FusedNorm
from crispseg.layout import to_channels_first, to_channels_last


class StageMaps(Sequence[Tensor]):
    """The stages' maps as a fused backbone left them, (B, h, w, C), and the norms that are still to follow.

    To a head that knows nothing of this it is the list that the backbone gives: maps (B, C, h, w), normalised when they
    are asked for. A fused head takes `maps` and `norms`, and normalises within kernels of its own.
    """

    def __init__(self, maps: Sequence[Tensor], norms: Sequence[FusedNorm] = ()) -> None:
        self.maps, self.norms = list(maps), list(norms)
        self._given: dict[int, Tensor] = {}

    @classmethod
    def of(cls, features: Sequence[Tensor]) -> StageMaps:
        """Of any backbone's features."""
        return features if isinstance(features, cls) else cls([to_channels_last(x).contiguous() for x in features])

    def normed(self, stage: int) -> Tensor:
        """(B, h, w, C)."""
        return self.norms[stage](self.maps[stage]) if self.norms else self.maps[stage]

    def __len__(self) -> int:
        return len(self.maps)

    def __getitem__(self, stage: Any) -> Any:
        if isinstance(stage, slice):
            return [self[i] for i in range(*stage.indices(len(self)))]
        stage = range(len(self))[stage]
        if stage not in self._given:
            self._given[stage] = to_channels_first(self.normed(stage))
        return self._given[stage]
