"""A checkpoint of a rival's authors as one of our models, which is scored, used and exported without any training."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crispseg.data.protocol import get_protocol, list_protocols
from crispseg.data.tables import find_table
from crispseg.errors import UserError
from crispseg.models.base import ModelInfo, SegmentationModel
from crispseg.models.registry import create_model
from crispseg.peers.authors import load_authors_checkpoint
from crispseg.train.config import train_config
from crispseg.train.start import IMAGENET_MEAN, IMAGENET_STD


def convert(
    name: str,
    file: str | os.PathLike[str],
    *,
    protocol: str | None = None,
    classes: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> SegmentationModel:
    """One of the rivals with its authors' weights and a card, in evaluation mode; `save` makes its folder.

    Args:
        name: Of the network, such as unetformer_r18.
        file: The authors' checkpoint, of the whole network.
        protocol: What it was trained for, such as potsdam/geoseg6: its classes, in this order, bands and pixel size.
        classes: Instead of that a class table: a file, or the name of a known set.
        options: Of the network.
    """
    if (protocol is None) == (classes is None):
        raise UserError(
            "a checkpoint does not name its classes: give a protocol (--protocol potsdam/geoseg6) or a class table "
            "(--classes FILE), one of the two"
        )
    facts = _facts_of_protocol(protocol) if protocol is not None else _facts_of_table(str(classes))
    model = create_model(name, len(facts["classes"]), len(IMAGENET_MEAN), **(options or {}))
    placed = load_authors_checkpoint(model, file, partial=True)
    if placed.classes is not None:
        raise UserError(
            f"{os.fspath(file)} is for {placed.classes} classes, but {protocol or classes} has "
            f"{model.num_classes}{_protocols_of(placed.classes)}"
        )
    if placed.missing:
        raise UserError(
            f"{os.fspath(file)} lacks {len(placed.missing)} of {name}'s tensors, e.g. {placed.missing[0]}, and is no "
            "whole network; `crisp train` starts from it: model.weights=FILE"
        )
    model.info = ModelInfo(
        **facts,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        dtype="uint8",
        training_data=f"what its authors chose ({Path(file).name})",
        licence="its authors'",
        notes="Converted from the authors' checkpoint; pixels are normalised with ImageNet's mean and std, as there.",
    )
    return model.eval()


def _facts_of_protocol(name: str) -> dict[str, Any]:
    protocol = get_protocol(name)
    return {
        "classes": protocol.classes,
        "palette": protocol.palette,
        "resolution": protocol.resolution,
        "bands": train_config(protocol.dataset).data.bands or (),
    }


def _facts_of_table(classes: str) -> dict[str, Any]:
    table = find_table(Path(), (), classes)
    return {"classes": table.names, "palette": table.palette}


def _protocols_of(count: int) -> str:
    """Those with so many classes, as advice."""
    fitting = [name for name in list_protocols() if len(get_protocol(name).classes) == count]
    return f"; give {' or '.join(fitting)}" if fitting else f"; give a class table of {count}"
