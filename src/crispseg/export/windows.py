"""Windows of a folder's images: to calibrate a quantised model on, and to score it with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crispseg.data.folder import Folder, open_folder
from crispseg.data.images import SUFFIXES, read_image
from crispseg.errors import UserError
from crispseg.models.base import SegmentationModel
from crispseg.reading import list_folder


class Labelled(NamedTuple):
    image: NDArray[np.float32]  # (1, bands, h, w), raw
    labels: NDArray[np.uint8] | None  # (h, w), 255 not counted; None where nobody labelled it


class Windows(NamedTuple):
    calibration: list[Labelled]
    scoring: list[Labelled]
    scored_on: str  # in words


def read_windows(
    root: str, model: SegmentationModel, size: tuple[int, int], count: int, protocol: str | None = None
) -> Windows:
    """At most `count` windows of `size` for each purpose, spread over the images.

    A data folder is calibrated on its training images and scored on those its protocol is scored on; a folder with
    nothing but images serves for both, and there is no truth.
    """
    folder = Path(root)
    if (folder / "images").is_dir() and any(folder.glob("masks*")):
        data = open_folder(folder, protocol=protocol)
        _check(data, model)
        split = data.protocol.scored_split
        known = "train" if data.splits.get("train") else split
        parts = [list(_labelled(data, name, size, count)) for name in (known, split)]
        return Windows(parts[0], parts[1], f"{len(parts[1])} windows of {split} images of {root}")
    found = list(_unlabelled(folder, model, size, count))
    return Windows(found, found, f"{len(found)} windows of {root}, against the float32 model's own map")


def _check(data: Folder, model: SegmentationModel) -> None:
    from crispseg.evaluate.run import check_fit

    check_fit(model, data)


def _labelled(data: Folder, split: str, size: tuple[int, int], count: int) -> Iterator[Labelled]:
    records = data.records(split)
    for record in _spread(records, count):
        image, labels = data.read_image(record), data.read_mask(record, data.protocol.labels(split))
        yield Labelled(_pixels(image, size), _cut(labels, size))


def _unlabelled(folder: Path, model: SegmentationModel, size: tuple[int, int], count: int) -> Iterator[Labelled]:
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
        yield Labelled(_pixels(image, size), None)


def _spread(items: Sequence[Any], count: int) -> list[Any]:
    """`count` of them, evenly."""
    number = min(count, len(items))
    return [items[i * len(items) // number] for i in range(number)]


def _pixels(image: NDArray[Any], size: tuple[int, int]) -> NDArray[np.float32]:
    values = np.nan_to_num(_cut(image, size).astype(np.float32))
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])


def _cut(array: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """The middle of an image, (h, w, ...)."""
    tops = [max(0, (have - want) // 2) for have, want in zip(array.shape, size, strict=False)]
    return array[tops[0] : tops[0] + size[0], tops[1] : tops[1] + size[1]]
