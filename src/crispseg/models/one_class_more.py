"""Which tensors of a network depend on its number of classes: measured by making it with one class more."""

from __future__ import annotations

import contextlib

import torch

from crispseg.models.base import SegmentationModel
from crispseg.models.registry import create_model


def shapes_with_one_class_more(model: SegmentationModel) -> dict[str, torch.Size]:
    """Measured on the meta device if the network can be made there. Of one that cannot have another number of classes
    nothing is known, and its tensors are taken over by their shapes."""
    for device in ("meta", "cpu"):
        with contextlib.suppress(Exception), torch.random.fork_rng(devices=[]), torch.device(device):
            larger = create_model(model.name, model.num_classes + 1, model.in_channels, **model.options)
            return {name: tensor.shape for name, tensor in larger.state_dict().items()}
    return {}
