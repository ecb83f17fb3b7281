"""The prepared layout's fixed names, its dataset.json, and per-band sums from which means and spreads follow."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from crispseg.data.images import Array
from crispseg.errors import UserError

FOLDERS = {"full": "masks", "eroded": "masks_eroded"}  # label variant -> folder
MANIFEST = "dataset.json"


def read_manifest(root: Path) -> dict[str, Any]:
    """What dataset.json says; an empty mapping where there is none."""
    path = root / MANIFEST
    if not path.exists():
        return {}
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(manifest, dict):
            return manifest
        raise ValueError("it is not a mapping")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); remove it and prepare again") from error


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Per band, in the units of the raw pixels."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def band_sums(image: Array) -> list[list[float]]:
    """Per band: number, sum and sum of squares; missing values (NaN) are left out."""
    sums = []
    for band in range(image.shape[-1]):
        values = image[..., band].astype(np.float64)
        values = values[~np.isnan(values)] if image.dtype.kind == "f" else values
        sums.append([float(values.size), float(values.sum()), float((values * values).sum())])
    return sums


def statistics_of(totals: Array) -> Statistics:
    """From (bands, 3): number, sum, sum of squares."""
    count, total, squares = np.asarray(totals).T
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    return Statistics(tuple(mean.tolist()), tuple(np.maximum(std, 1e-6).tolist()))
