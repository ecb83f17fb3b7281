"""What is trained: the backbone, and small heads that are thrown away afterwards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from crispseg.models.vssd import VSSD

_STRIDE = 4  # of the finest features


class Told(NamedTuple):
    """What the heads say of a batch."""

    logits: dict[str, Tensor]  # of each labelled set's pictures
    features: list[Tensor]  # the teacher's outputs, predicted
    views: dict[str, Tensor]  # (B, width) embeddings of each set whose pictures are seen twice, as neighbours


class Pretraining(nn.Module):
    """A backbone with a linear head per labelled set, projections to a teacher's features, and to embeddings of views.

    `parts` says which pictures of a batch belong to which set, in order; `classes` has the labelled sets'.
    """

    def __init__(
        self,
        backbone: VSSD,
        parts: Mapping[str, slice],
        classes: Mapping[str, int],
        taught: Sequence[tuple[int, ...]] = (),
        size: int = 64,
        twice: Sequence[str] = (),
        embedding: int = 512,
    ) -> None:
        super().__init__()
        self.backbone, self.parts, self.twice = backbone, dict(parts), tuple(twice)
        width = backbone.widths[-1]
        self.heads = nn.ModuleDict({name: nn.Linear(width, count) for name, count in classes.items()})
        self.stages = [nearest_stage(shape, size) for shape in taught]
        self.predictions = nn.ModuleList(
            nn.Linear(width, shape[0]) if len(shape) == 1 else nn.Conv2d(backbone.widths[stage], shape[0], 1)
            for shape, stage in zip(taught, self.stages, strict=True)
        )
        for module in (self.heads, self.predictions):
            module.apply(_start_small)
        self.projector = _projector(sum(backbone.widths), embedding) if twice else None
        self._rest_norms()

    def _rest_norms(self) -> None:
        """Output norms that no head reads stay as they are; the fine-tuned model's head will train them."""
        read = {stage for stage, head in zip(self.stages, self.predictions, strict=True) if isinstance(head, nn.Conv2d)}
        for stage in range(3):
            if self.projector is None and stage not in read:
                getattr(self.backbone, f"outnorm{stage}").requires_grad_(False)

    def forward(self, images: Tensor) -> Told:
        maps = self.backbone(images)
        pooled = maps[-1].mean((2, 3))
        logits = {name: head(pooled[self.parts[name]]) for name, head in self.heads.items()}
        features = [
            head(pooled if isinstance(head, nn.Linear) else maps[stage])
            for stage, head in zip(self.stages, self.predictions, strict=True)
        ]
        return Told(logits, features, self._embedded(maps))

    def _embedded(self, maps: list[Tensor]) -> dict[str, Tensor]:
        """All four stages, pooled, so that each learns what a picture's views have in common."""
        if self.projector is None:
            return {}
        pooled = torch.cat([m.mean((2, 3), keepdim=True) for m in maps], dim=1)
        return {name: self.projector(pooled[self.parts[name]]).flatten(1) for name in self.twice}

    @torch.no_grad()
    def pooled(self, images: Tensor) -> Tensor:
        """(B, width) what a picture is known by in the scores."""
        return self.backbone(images)[-1].float().mean((2, 3))


def nearest_stage(shape: tuple[int, ...], size: int) -> int:
    """The stage whose maps are nearest in size to a teacher's (D, h, w); the last for a vector (D,)."""
    if len(shape) == 1:
        return 3
    stride = size / shape[-1]
    return min(max(round(math.log2(stride / _STRIDE)), 0), 3)


def _projector(width: int, embedding: int) -> nn.Sequential:
    """Of pooled maps (B, C, 1, 1): convolutions, as those are what batch norms of several processes know."""
    return nn.Sequential(
        nn.Conv2d(width, embedding, 1), nn.BatchNorm2d(embedding), nn.ReLU(), nn.Conv2d(embedding, embedding, 1)
    )


def _start_small(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
