"""The model that is used where none is named."""

from __future__ import annotations

from crispseg.models import shipped
from crispseg.models.base import SegmentationModel
from crispseg.models.folder import load


def open_default() -> tuple[SegmentationModel, str]:
    """The model, and the line that tells its user what it is."""
    model = load(shipped.DEFAULT)
    imagery = model.info.training_data.partition(":")[0]  # the splits by their hashes are in the card
    return model, f"no model given: using {shipped.DEFAULT}, trained on {imagery}; expect less on other imagery"
