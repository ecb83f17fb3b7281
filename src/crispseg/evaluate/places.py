"""Places worth looking at: where one class is taken for another, and where two models differ."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crispseg.data.classes import IGNORE
from crispseg.data.folder import Folder, Record
from crispseg.errors import UserError
from crispseg.evaluate.result import Evaluation, ImageCounts
from crispseg.evaluate.worst import WorstWindow, parts

_LARGE = 0.005  # of all labelled pixels: a smaller confusion gets no picture
_SHOWN = 6  # confusions, gains and losses
Ids = NDArray[np.uint8]


@dataclasses.dataclass(frozen=True)
class Confusion:
    """One class taken for another, and the window with most of it."""

    true: int
    predicted: int
    share: float  # of the true class's pixels
    of_all: float  # of all labelled pixels
    window: WorstWindow


@dataclasses.dataclass(frozen=True)
class Change:
    """A window that B maps better than A (`gain` > 0) or worse."""

    gain: float  # share of the labelled pixels that B has right and A has not, less the other way round
    a: WorstWindow
    b: WorstWindow


def large_confusions(evaluation: Evaluation, limit: int = _SHOWN) -> list[Confusion]:
    """The largest, each shown in the image that has most of it."""
    counts = evaluation.confusion.counts.numpy()
    total = max(int(counts.sum()), 1)
    found: list[Confusion] = []
    for true, predicted in _largest(counts):
        if counts[true, predicted] < _LARGE * total or len(found) == limit:
            break
        image = max(evaluation.images, key=lambda image: int(image.confusion.counts[true, predicted]))

        def amount(truth: Ids, ids: Ids, true: int = true, predicted: int = predicted) -> int:
            return int(((truth == true) & (ids == predicted)).sum())

        window = _best_window(evaluation, image, amount)
        if window is not None:
            share = counts[true, predicted] / counts[true].sum()
            found.append(Confusion(true, predicted, float(share), float(counts[true, predicted] / total), window))
    return found


def _largest(counts: NDArray[Any]) -> Iterator[tuple[int, int]]:
    off = counts.copy()
    np.fill_diagonal(off, 0)
    for flat in np.argsort(-off, axis=None, kind="stable"):
        true, predicted = np.unravel_index(flat, off.shape)
        yield int(true), int(predicted)


def changes(a: Evaluation, b: Evaluation, limit: int = _SHOWN) -> tuple[list[Change], list[Change]]:
    """The windows with the largest gains of B over A, and those with the largest losses, over all images."""
    spots: list[_Spot] = []
    for one, other in zip(a.images, b.images, strict=True):
        loaded = _truth_of(a, one)
        if loaded is None or one.prediction is None or other.prediction is None:
            continue
        first, second = one.prediction.ids(), other.prediction.ids()
        for rows, columns in itertools.product(*map(parts, loaded.shape)):
            true = loaded[rows, columns]
            labels = true != IGNORE
            right_a, right_b = first[rows, columns] == true, second[rows, columns] == true
            gained, lost = (int((x & ~y & labels).sum()) for x, y in ((right_b, right_a), (right_a, right_b)))
            spots.append(
                _Spot((gained - lost) / max(int(labels.sum()), labels.size // 10, 1), one.index, rows, columns)
            )
    gains = sorted((s for s in spots if s.gain > 0), key=lambda s: (-s.gain, s.image))[:limit]
    losses = sorted((s for s in spots if s.gain < 0), key=lambda s: (s.gain, s.image))[:limit]
    return [_change(a, b, spot) for spot in gains], [_change(a, b, spot) for spot in losses]


class _Spot(NamedTuple):
    gain: float
    image: int
    rows: slice
    columns: slice


def _change(a: Evaluation, b: Evaluation, spot: _Spot) -> Change:
    windows = []
    for side in (a, b):
        counts = next(image for image in side.images if image.index == spot.image)
        truth = _truth_of(side, counts)
        assert truth is not None and counts.prediction is not None  # it was looked at
        windows.append(_window(side, counts, truth, counts.prediction.ids(), spot.rows, spot.columns))
    return Change(spot.gain, *windows)


def _best_window(evaluation: Evaluation, image: ImageCounts, amount: Callable[[Ids, Ids], int]) -> WorstWindow | None:
    truth = _truth_of(evaluation, image)
    if truth is None or image.prediction is None:
        return None
    ids = image.prediction.ids()
    places = itertools.product(*map(parts, truth.shape))
    rows, columns = max(places, key=lambda place: amount(truth[place], ids[place]))
    return _window(evaluation, image, truth, ids, rows, columns)


def _window(
    evaluation: Evaluation, image: ImageCounts, truth: Ids, ids: Ids, rows: slice, columns: slice
) -> WorstWindow:
    assert evaluation.folder is not None
    pixels = evaluation.folder.read_image(_record(evaluation, image))[rows, columns]
    true, predicted = truth[rows, columns], ids[rows, columns]
    labels = true != IGNORE
    wrong, labelled = int(((true != predicted) & labels).sum()), int(labels.sum())
    share = wrong / max(labelled, 1)
    return WorstWindow(
        image.index, image.name, rows.start, columns.start, wrong, labelled, share, pixels, true, predicted
    )


def _truth_of(evaluation: Evaluation, image: ImageCounts) -> Ids | None:
    """The labels as they were scored: not where the image has no data. None where the data is not at hand."""
    if evaluation.folder is None or image.prediction is None:
        return None
    truth = evaluation.folder.read_mask(_record(evaluation, image), evaluation.conditions.labels)
    return np.where(image.prediction.ids() == IGNORE, np.uint8(IGNORE), truth)


def _record(evaluation: Evaluation, image: ImageCounts) -> Record:
    folder: Folder | None = evaluation.folder
    assert folder is not None
    return folder.records(evaluation.conditions.split)[image.index]


def coordinates(evaluation: Evaluation, window: WorstWindow) -> str:
    """Latitude and longitude of a window's middle where its image has a reference system, else nothing."""
    if evaluation.folder is None:
        return ""
    record = evaluation.folder.records(evaluation.conditions.split)[window.index]
    if record.image.suffix.lower() not in (".tif", ".tiff"):
        return ""
    try:
        from rasterio.warp import transform

        from crispseg.geo.reader import grid_of, open_raster

        with open_raster(str(record.image)) as dataset:
            grid = grid_of(dataset)
    except (ImportError, UserError):
        return ""
    if not grid.crs:
        return ""
    top, left = offset(record)
    height, width = window.truth.shape
    x, y = grid.ground(left + window.left + width / 2, top + window.top + height / 2)
    (longitude,), (latitude,) = transform(grid.crs, "EPSG:4326", [x], [y])
    return f"{latitude:.6f}, {longitude:.6f}"


def offset(record: Record) -> tuple[int, int]:
    """Where a record begins in its image file: row and column."""
    return (0, 0) if record.window is None else (record.window.top, record.window.left)


def map_files(evaluation: Evaluation) -> tuple[dict[str, Any], dict[str, Ids]]:
    """What `crisp view REPORT` needs: the worst places and, of the images they are in, map and truth in file size."""
    if evaluation.folder is None or not evaluation.worst:
        return {}, {}
    names = {
        index: f"maps/{number:02d}" for number, index in enumerate(dict.fromkeys(w.index for w in evaluation.worst), 1)
    }
    files: dict[str, Ids] = {}
    images = []
    for counts in (image for image in evaluation.images if image.index in names):
        truth = _truth_of(evaluation, counts)
        if truth is None or counts.prediction is None:
            continue
        record = _record(evaluation, counts)
        name = names[counts.index]
        files[f"{name}.png"] = _whole(record, counts.prediction.ids())
        files[f"{name}-truth.png"] = _whole(record, truth)
        image = str(Path(record.image).resolve())
        images.append({"name": counts.name, "file": image, "map": f"{name}.png", "truth": f"{name}-truth.png"})
    listed = {"images": images, "places": [_place(evaluation, i, w) for i, w in enumerate(evaluation.worst)]}
    return listed, files


def _place(evaluation: Evaluation, number: int, window: WorstWindow) -> dict[str, Any]:
    assert evaluation.folder is not None
    top, left = offset(evaluation.folder.records(evaluation.conditions.split)[window.index])
    height, width = window.truth.shape
    label = f"{number + 1}: {100 * window.share:.1f} % wrong"
    where = {"top": top + window.top, "left": left + window.left, "height": height, "width": width}
    return {"place": number, "image": window.name, "label": label, **where}


def _whole(record: Record, ids: Ids) -> Ids:
    """In the size of the image's file; nothing where the record has no part of it."""
    if record.window is None:
        return ids
    from crispseg.data.images import read_header

    header = read_header(record.image)
    whole = np.full((header.height, header.width), IGNORE, np.uint8)
    top, left = offset(record)
    whole[top : top + len(ids), left : left + ids.shape[1]] = ids
    return whole
