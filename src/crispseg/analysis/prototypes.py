"""The prototypes of an OMP head: which of them won each pixel, how evenly they are used, how far apart they are."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from crispseg.losses import orthogonality_loss
from crispseg.models.base import SegmentationModel
from crispseg.models.crisp import CRISP
from crispseg.models.layers import resize
from crispseg.ops.train.matching import match

USED = 0.1  # a prototype with a smaller share of its class's pixels counts as unused


class Matching(NamedTuple):
    """One image's matching of pixels and prototypes."""

    logits: Tensor  # (1, classes, H, W)
    cosines: Tensor  # (classes, K, h, w) at the descriptors' stride
    prototypes: Tensor  # (classes, K, d), L2-normalised


def has_prototypes(model: SegmentationModel) -> bool:
    return isinstance(model, CRISP)


def match_prototypes(model: CRISP, image: Tensor) -> Matching:
    """The model's logits for one normalised image (1, bands, H, W), with all the cosines that they are made from."""
    head = model.head
    tokens, pixels = head.interact(model.backbone(image))
    prototypes = head.prototypes(tokens)
    cosines = match(pixels, prototypes)
    logits = resize(cosines.amax(2) * head.scale(), image.shape[-2:])
    return Matching(logits, cosines[0], prototypes[0])


def allocation(cosines: Tensor, predicted: Tensor) -> Tensor:
    """(H, W) which prototype of the predicted class won: cosines (classes, K, h, w), predicted ids (H, W)."""
    winners = cosines.argmax(1)  # (classes, h, w)
    rows, columns = (_nearest(n, m) for n, m in zip(predicted.shape, winners.shape[1:], strict=True))
    return winners[predicted.long(), rows.to(predicted.device)[:, None], columns.to(predicted.device)]


def _nearest(length: int, of: int) -> Tensor:
    """For each of `length` pixels the place in a map of `of` cells that covers its centre."""
    return ((2 * torch.arange(length) + 1) * of).div(2 * length, rounding_mode="floor")


@dataclasses.dataclass(frozen=True)
class Prototypes:
    """Sums over images. Prototypes are made anew for every image, so `steadiness` says how much they differ."""

    images: int
    pixels: NDArray[np.int64]  # (classes, K) pixels predicted as the class and won by the prototype
    cosines: NDArray[np.float64]  # (classes * K, classes * K) mean over images
    class_cosines: NDArray[np.float64]  # (classes, classes) of the normalised class means, mean over images
    closest: NDArray[np.float64]  # (images,) the largest cosine of two different class means; empty with one class
    orthogonality: NDArray[np.float64]  # (classes,) mean |cosine| of two prototypes of the class; 0 where K = 1
    steadiness: NDArray[np.float64]  # (classes, K) length of the prototype's mean over images: 1 if always the same

    @property
    def shares(self) -> NDArray[np.float64]:
        """(classes, K) part of the class's pixels; NaN for a class that was never predicted."""
        totals = self.pixels.sum(1, keepdims=True)
        return np.where(totals > 0, self.pixels / np.maximum(totals, 1), np.nan)

    @property
    def entropy(self) -> NDArray[np.float64]:
        """(classes,) of the shares, 1 when all K are used alike, 0 when one is used alone; NaN where K = 1."""
        shares, count = self.shares, self.pixels.shape[1]
        if count == 1:
            return np.full(len(shares), np.nan)
        nats = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(1) + 0.0  # no minus zero
        return np.asarray(nats / np.log(count))

    @property
    def used(self) -> NDArray[np.int64]:
        """(classes,) prototypes with at least the share USED."""
        return np.asarray((self.shares >= USED).sum(1))

    @property
    def margin(self) -> float:
        """One minus the largest cosine of two class means in any image: the delta that training has reached."""
        return float(1 - self.closest.max()) if self.closest.size else float("nan")


class PrototypeSums:
    """Adds up images to a `Prototypes`."""

    def __init__(self) -> None:
        self._pixels: list[Tensor] = []
        self._prototypes: list[Tensor] = []

    def add(self, matching: Matching, predicted: Tensor, won: Tensor, present: Tensor) -> None:
        """`predicted` and `won` (H, W); only pixels that are `present` are counted."""
        classes, count = matching.prototypes.shape[:2]
        cells = (predicted.long() * count + won)[present]
        self._pixels.append(torch.bincount(cells, minlength=classes * count).view(classes, count).cpu())
        self._prototypes.append(matching.prototypes.double().cpu())

    def finish(self) -> Prototypes:
        all_ = torch.stack(self._prototypes)  # (images, classes, K, d)
        flat = all_.flatten(1, 2)
        means = functional.normalize(all_.mean(2), dim=-1)
        between = means @ means.transpose(1, 2)  # (images, classes, classes)
        different = ~torch.eye(between.shape[-1], dtype=torch.bool)
        by_class = all_.transpose(0, 1)[:, :, None]  # (classes, images, 1, K, d)
        return Prototypes(
            images=len(all_),
            pixels=torch.stack(self._pixels).sum(0).numpy(),
            cosines=(flat @ flat.transpose(1, 2)).mean(0).numpy(),
            class_cosines=between.mean(0).numpy(),
            closest=between[:, different].amax(1).numpy() if between.shape[-1] > 1 else np.empty(0),
            orthogonality=np.array([float(orthogonality_loss(each)) for each in by_class]),
            steadiness=all_.mean(0).norm(dim=-1).numpy(),
        )
