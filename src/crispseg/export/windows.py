"""Windows of a folder's images: to calibrate a quantised model on, and to score it with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crispseg.data.bands import named_bands
from crispseg.data.classes import IGNORE
from crispseg.data.folder import Folder, open_folder
from crispseg.data.images import SUFFIXES, read_image
from crispseg.errors import UserError
from crispseg.evaluate.run import check_fit, naming_notes
from crispseg.models.base import SegmentationModel
from crispseg.predict.evaluate import check_card
from crispseg.raster import values
from crispseg.raster.source import ArraySource, Window, read_reflected
from crispseg.reading import list_folder

_SIDE = 512  # of windows where any size will do


class Labelled(NamedTuple):
    image: NDArray[np.float32]  # (1, bands, h, w), raw
    labels: NDArray[np.uint8] | None  # (h, w), 255 not counted; None where nobody labelled it


class Windows(NamedTuple):
    calibration: list[Labelled]
    scoring: list[Labelled]
    scored_on: str  # in words
    notes: tuple[str, ...] = ()  # what the reader of a score has to know


def read_windows(
    root: str, model: SegmentationModel, size: tuple[int, int] | None, count: int, protocol: str | None = None
) -> Windows:
    """At most `count` windows for each purpose, spread over the images: of `size`, else of what the images have up to
    512 px.

    A data folder is calibrated on its training images and scored on those its protocol is scored on; a folder with
    nothing but images serves for both, and there is no truth.
    """
    check_card(model)
    folder = Path(root)
    if (folder / "images").is_dir() and any(folder.glob("masks*")):
        data = open_folder(folder, protocol=protocol)
        check_fit(model, data)
        split = data.protocol.scored_split
        known = "train" if data.splits.get("train") else split
        parts = [list(_labelled(data, name, model, size, count)) for name in (known, split)]
        notes = tuple(naming_notes(model, data.protocol, named_bands(data)))
        return Windows(parts[0], parts[1], f"{len(parts[1])} windows of {split} images of {root}", notes)
    found = list(_unlabelled(folder, model, size, count))
    return Windows(found, found, f"{len(found)} windows of {root}, against the float32 model's own map")


def _labelled(
    data: Folder, split: str, model: SegmentationModel, size: tuple[int, int] | None, count: int
) -> Iterator[Labelled]:
    for record in _spread(data.records(split), count):
        (image, measured, _), labels = data.read_pair(record, data.protocol.labels(split))
        yield _middle(image, labels, str(record.image), model, size, measured)


def _unlabelled(folder: Path, model: SegmentationModel, size: tuple[int, int] | None, count: int) -> Iterator[Labelled]:
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder} to calibrate on")
    inner = folder / "images" if (folder / "images").is_dir() else folder
    paths = [path for path in list_folder(inner) if path.suffix.lower() in SUFFIXES]
    if not paths:
        raise UserError(f"{folder} has no image to calibrate on ({', '.join(SUFFIXES)})")
    for path in _spread(paths, count):
        image = read_image(path)
        if image.shape[2] != model.in_channels:
            raise UserError(f"{path} has {image.shape[2]} bands, and model {model.name!r} takes {model.in_channels}")
        yield _middle(image, None, str(path), model, size)


def _spread(items: Sequence[Any], count: int) -> list[Any]:
    """`count` of them, evenly."""
    number = min(count, len(items))
    return [items[i * len(items) // number] for i in range(number)]


def _middle(
    image: NDArray[Any],
    labels: NDArray[np.uint8] | None,
    path: str,
    model: SegmentationModel,
    size: Any,
    measured: NDArray[np.bool_] | None = None,
) -> Labelled:
    """The middle of an image, as `crisp predict` would show it: in gaps and beyond its edges is its reflection. Neither
    has labels that count."""
    have = image.shape[:2]
    height, width = size or (min(_SIDE, have[0]), min(_SIDE, have[1]))
    window = Window((have[0] - height) // 2, (have[1] - width) // 2, height, width)
    pixels = read_reflected(ArraySource(image, model.info.mean, measured), window)
    _check_values(pixels.values[:, pixels.present], image.dtype, path, model)
    if labels is not None:
        labels = _framed(labels, window)
        labels[~pixels.present] = IGNORE
    return Labelled(np.ascontiguousarray(pixels.values[None], dtype=np.float32), labels)


def _check_values(sample: NDArray[Any], dtype: np.dtype[Any], path: str, model: SegmentationModel) -> None:
    reason = values.unfit(model.info, dtype, sample) if values.may_differ(model.info, dtype) else ""
    if reason:
        raise UserError(f"{path} does not suit the model: {reason}; calibrate on images like those it will see")


def _framed(labels: NDArray[np.uint8], window: Window) -> NDArray[np.uint8]:
    """A window of the labels; what lies outside of them does not count."""
    framed = np.full((window.height, window.width), IGNORE, np.uint8)
    (into_rows, rows), (into_cols, cols) = (
        (slice(max(0, -start), max(0, -start) + min(count, length)), slice(max(0, start), max(0, start) + count))
        for start, count, length in zip(window[:2], window[2:], labels.shape, strict=True)
    )
    framed[into_rows, into_cols] = labels[rows, cols]
    return framed
