"""The prepared layout's fixed names, its dataset.json, and per-band sums from which means and spreads follow."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from crispseg import config as configs
from crispseg.data.images import Array
from crispseg.errors import UserError
from crispseg.reading import read_json

FORMAT = 1
FOLDERS = {"full": "masks", "eroded": "masks_eroded"}  # label variant -> folder
MANIFEST = "dataset.json"
JOURNAL = ".prepare.jsonl"  # there as long as `crisp prepare` is not finished


class FileFacts(TypedDict):
    bytes: int
    sha256: str


class LabelEntry(TypedDict):
    histogram: list[int]
    mended: int


class ListedImage(TypedDict):
    """What an entry of dataset.json must say."""

    name: str
    width: int
    height: int
    sums: list[tuple[float, float, float]]  # per band, see `band_sums`


class ImageEntry(ListedImage):
    """What `crisp prepare` notes of an image, there and in its journal."""

    labels: dict[str, LabelEntry]
    files: dict[str, FileFacts]  # by path below the folder
    signature: str


class Manifest(TypedDict, total=False):
    format: int
    dataset: str
    layout: str
    classes: list[dict[str, Any]]
    bands: list[str]
    resolution: float | None
    protocols: dict[str, str]
    images: list[ListedImage]


def read_manifest(root: Path) -> Manifest:
    """What dataset.json says; an empty mapping where there is none."""
    path = root / MANIFEST
    if not path.exists():
        return {}
    try:
        manifest: Manifest = configs.checked(Manifest, read_json(path), "it")
        for entry in manifest.get("images", []):
            check_entry(entry)
    except UserError as error:
        raise UserError(f"{path} cannot be read ({error}); remove it and prepare again") from error
    if manifest.get("format", FORMAT) > FORMAT:
        raise UserError(f"{path} was written by a newer crispseg (format {manifest['format']}); upgrade crispseg")
    return manifest


def check_entry(entry: ListedImage) -> None:
    """Refuse what no run of ours notes: impossible sizes and sums, and files outside the folder."""
    where = f"the entry of {entry['name']!r}"
    if entry["width"] < 1 or entry["height"] < 1:
        raise UserError(f"{where} has a size of {entry['width']} x {entry['height']} px")
    if not all(math.isfinite(number) for sums in entry["sums"] for number in sums):
        raise UserError(f"{where} has sums that are no numbers")
    for name in configs.checked(dict[str, Any], entry.get("files", {}), f"files of {where}"):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name:
            raise UserError(f"{where} names a file outside the folder: {name!r}")


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Per band, in the units of the raw pixels."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def band_sums(image: Array, measured: NDArray[np.bool_] | None = None) -> list[list[float]]:
    """Per band: number, sum and sum of squares, of what was `measured` (H, W, bands); NaN and infinity are left out."""
    totals = np.zeros((image.shape[-1], 3))
    for top in range(0, len(image), _ROWS_AT_ONCE):  # eight bytes a pixel: a large image is not copied whole
        rows = slice(top, top + _ROWS_AT_ONCE)
        for band in range(image.shape[-1]):
            values = image[rows, ..., band][... if measured is None else measured[rows, ..., band]].astype(np.float64)
            values = values[np.isfinite(values)] if image.dtype.kind == "f" else values
            totals[band] += values.size, values.sum(), (values * values).sum()
    return totals.tolist()


_ROWS_AT_ONCE = 512


def statistics_of(totals: Array) -> Statistics:
    """From (bands, 3): number, sum, sum of squares."""
    count, total, squares = np.asarray(totals).T
    if (count < 1).any():
        raise UserError(f"band {int((count < 1).argmax()) + 1} of the images has no values at all")
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    return Statistics(tuple(mean.tolist()), tuple(np.maximum(std, 1e-6).tolist()))
