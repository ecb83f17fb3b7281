"""How good features are, without training anything: nearest neighbours, and a linear map in closed form."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from crispseg.pretrain.changes import apply_changes, no_changes
from crispseg.pretrain.draws import Whole
from crispseg.pretrain.pictures import Pictures

_NEIGHBOURS = 20
_SHARPNESS = 0.07  # of the neighbours' votes
_RIDGE = 1e-3  # times the mean variance of the features
_BATCH = 256


def score_features(
    embed: Callable[[Tensor], Tensor],
    training: Pictures,
    held_back: Pictures,
    images: int,
    size: int,
    device: torch.device,
) -> dict[str, float]:
    """Shares of the held-back pictures that are classed right: `knn` and `linear`. `embed` takes raw pictures."""
    chosen, asked_for = (_spread(len(pictures), images) for pictures in (training, held_back))
    known = _features(embed, training, chosen, size, device)
    asked = _features(embed, held_back, asked_for, size, device)
    labels = torch.from_numpy(training.labels[chosen]).to(device)
    truth = torch.from_numpy(held_back.labels[asked_for]).to(device)
    classes = len(training.classes)
    return {
        "knn": _share(nearest_classes(known, labels, asked, classes), truth),
        "linear": _share(linear_classes(known, labels, asked, classes), truth),
    }


def _spread(length: int, at_most: int) -> Whole:
    """At most so many indices, evenly spread."""
    return np.unique(np.linspace(0, length - 1, min(length, at_most)).astype(np.int64))


def _features(
    embed: Callable[[Tensor], Tensor], pictures: Pictures, indices: Whole, size: int, device: torch.device
) -> Tensor:
    parts = []
    for start in range(0, len(indices), _BATCH):
        some = pictures.take(indices[start : start + _BATCH], device)
        parts.append(embed(apply_changes(some, no_changes(len(some)).to(device), size)).float())
    return torch.cat(parts)


def nearest_classes(known: Tensor, labels: Tensor, asked: Tensor, classes: int) -> Tensor:
    """The class that most of the 20 nearest known pictures vote for, by cosine; nearer ones count more."""
    known, asked = functional.normalize(known, dim=1), functional.normalize(asked, dim=1)
    found = []
    for part in asked.split(1024):
        cosines, indices = (part @ known.T).topk(min(_NEIGHBOURS, len(known)), dim=1)
        votes = torch.zeros(len(part), classes, device=part.device)
        votes.scatter_add_(1, labels[indices], (cosines / _SHARPNESS).exp())
        found.append(votes.argmax(1))
    return torch.cat(found)


def linear_classes(known: Tensor, labels: Tensor, asked: Tensor, classes: int) -> Tensor:
    """The largest output of the ridge regression from features to one-hot labels."""
    mean, std = known.mean(0), known.std(0).clamp(min=1e-6)
    x = _with_one((known - mean) / std).double()
    y = functional.one_hot(labels, classes).double()
    gram = x.T @ x
    gram.diagonal().add_(_RIDGE * len(x))
    weights = torch.linalg.solve(gram, x.T @ y)
    return (_with_one((asked - mean) / std).double() @ weights).argmax(1)


def _with_one(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones_like(x[:, :1])], dim=1)


def _share(found: Tensor, truth: Tensor) -> float:
    return float((found == truth).double().mean())
