"""Scenes of rectangles, one class each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[Any]
SIZE = (80, 96)  # height, width of a tile


def scene(
    rng: np.random.Generator, size: tuple[int, int] = SIZE, classes: int = 6, bands: int = 3
) -> tuple[Array, Array]:
    """An image (H, W, bands) and its class ids (H, W)."""
    height, width = size
    ids = np.full(size, rng.integers(classes), np.uint8)
    for _ in range(12):
        top, left = rng.integers(0, height - 4), rng.integers(0, width - 4)
        tall, wide = rng.integers(4, max(height // 2, 5)), rng.integers(4, max(width // 2, 5))
        ids[top : top + tall, left : left + wide] = rng.integers(classes)
    colours = np.random.default_rng(7).integers(20, 236, (256, bands))  # the same in every scene
    noise = rng.normal(0, 12, (height, width, bands))
    return np.clip(colours[ids] + noise, 1, 255).astype(np.uint8), ids


def erode(ids: Array, ignored: int = 255) -> Array:
    """The ids with a pixel on both sides of every boundary ignored."""
    result = ids.copy()
    across, down = ids[:, 1:] != ids[:, :-1], ids[1:] != ids[:-1]
    result[:, 1:][across] = result[:, :-1][across] = ignored
    result[1:][down] = result[:-1][down] = ignored
    return result


def paint(ids: Array, colours: tuple[tuple[int, int, int], ...]) -> Array:
    """Ids as colours; what has no colour is black."""
    table = np.zeros((256, 3), np.uint8)
    table[: len(colours)] = colours
    return table[ids]


def save(path: Path, array: Array) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)
