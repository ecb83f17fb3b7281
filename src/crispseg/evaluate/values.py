"""Whether the images of a data set are of the kind that a model was trained on: nothing is scored that `crisp predict`
would refuse to map."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crispseg.data.folder import Folder, Record
from crispseg.errors import UserError
from crispseg.evaluate.spectrum import spread
from crispseg.models.base import SegmentationModel
from crispseg.raster import values
from crispseg.raster.source import ArraySource

_LOOKED_AT = 3  # images, evenly from first to last; all of a folder have one type


def check_values(model: SegmentationModel, folder: Folder, records: Sequence[Record]) -> None:
    """Refuse 16-bit images for a model of 8 bits, and the like: the scores would be those of noise."""
    dtype = np.dtype(folder.dtype)
    if not model.info.mean or not values.may_differ(model.info, dtype):
        return
    for index in sorted(spread(len(records), _LOOKED_AT)):
        record = records[index]
        gapped = folder.read_gapped(record)
        source = ArraySource(gapped.image, model.info.mean, gapped.measured)
        looked_at = [source.read(window) for window in values.some_windows(source.height, source.width)]
        sample = np.concatenate([pixels.values[:, pixels.present] for pixels in looked_at], axis=1)
        reason = values.unfit(model.info, dtype, sample)
        if reason:
            raise UserError(
                f"{record.image} does not suit the model {model.title}: {reason}; score it on images like those, or "
                "train a model on images like this one"
            )
