"""A generated aerial scene with its true class map: fields, water, roads, buildings with shadows, and trees."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CLASSES = ("road", "building", "field", "tree", "water")
PALETTE = ((255, 255, 255), (0, 0, 255), (0, 255, 255), (0, 255, 0), (255, 195, 128))
ROAD, BUILDING, FIELD, TREE, WATER = range(5)

_Image = NDArray[np.uint8]


def generate(height: int, width: int, seed: int = 0) -> tuple[_Image, _Image]:
    """An RGB image (H, W, 3) and its class ids (H, W); the same seed gives the same scene."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    colour = _fields(rows, columns, rng)
    labels = np.full((height, width), FIELD, np.uint8)
    _water(colour, labels, rows, columns, rng)
    _roads(colour, labels, rows, columns, rng)
    _buildings(colour, labels, rng)
    _trees(colour, labels, rows, columns, rng)
    noise = rng.normal(0, 6, (height, width, 1)) + rng.normal(0, 3, (height, width, 3))
    return np.clip(colour + noise, 0, 255).astype(np.uint8), labels


def _fields(rows: NDArray[np.float32], columns: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Patches around random seeds, each with its own green or brown and its own furrows."""
    seeds = rng.uniform(0, 1, (12, 2)) * (rows.shape[0], rows.shape[1])
    distance = [(rows - y) ** 2 + (columns - x) ** 2 for y, x in seeds]
    patch = np.argmin(distance, axis=0)
    tones = rng.uniform((90, 110, 50), (150, 150, 90), (12, 3)).astype(np.float32)
    angles, periods = rng.uniform(0, np.pi, 12), rng.uniform(5, 11, 12)
    furrow = np.sin((rows * np.sin(angles[patch]) + columns * np.cos(angles[patch])) * 2 * np.pi / periods[patch])
    return tones[patch] + 8 * furrow[..., None].astype(np.float32)


def _water(
    colour: NDArray[np.float32],
    labels: _Image,
    rows: NDArray[np.float32],
    columns: NDArray[np.float32],
    rng: np.random.Generator,
) -> None:
    for _ in range(2):
        y, x = rng.uniform(0.1, 0.9, 2) * labels.shape
        angle = np.arctan2(rows - y, columns - x)
        radius = (0.1 + 0.03 * np.sin(3 * angle + rng.uniform(0, 6)) + 0.02 * np.sin(5 * angle)) * min(labels.shape)
        inside = np.hypot(rows - y, columns - x) < radius
        colour[inside], labels[inside] = (60, 85, 105), WATER


def _roads(
    colour: NDArray[np.float32],
    labels: _Image,
    rows: NDArray[np.float32],
    columns: NDArray[np.float32],
    rng: np.random.Generator,
) -> None:
    for _ in range(5):
        angle, y, x = rng.uniform(0, np.pi), *(rng.uniform(0, 1, 2) * labels.shape)
        offset = (rows - y) * np.cos(angle) - (columns - x) * np.sin(angle)
        along = (rows - y) * np.sin(angle) + (columns - x) * np.cos(angle)
        inside = np.abs(offset + 4 * np.sin(along / 40)) < rng.uniform(3, 6)
        colour[inside], labels[inside] = rng.uniform(105, 135), ROAD


def _buildings(colour: NDArray[np.float32], labels: _Image, rng: np.random.Generator) -> None:
    height, width = labels.shape
    for _ in range(height * width // 2500):
        h, w = rng.integers(8, 26, 2)
        y, x = rng.integers(0, max(height - h, 1)), rng.integers(0, max(width - w, 1))
        if (labels[y : y + h, x : x + w] != FIELD).any():
            continue
        shadow = colour[y + 3 : y + h + 3, x + 3 : x + w + 3]
        shadow *= np.where(labels[y + 3 : y + h + 3, x + 3 : x + w + 3] == FIELD, 0.55, 1.0)[..., None]
        roof = rng.uniform((120, 70, 60), (200, 140, 130))
        colour[y : y + h, x : x + w] = roof
        colour[y : y + h // 2, x : x + w] *= 1.15
        labels[y : y + h, x : x + w] = BUILDING


def _trees(
    colour: NDArray[np.float32],
    labels: _Image,
    rows: NDArray[np.float32],
    columns: NDArray[np.float32],
    rng: np.random.Generator,
) -> None:
    height, width = labels.shape
    for _ in range(height * width // 1200):
        y, x, radius = rng.integers(0, height), rng.integers(0, width), rng.uniform(3, 8)
        around = (slice(max(y - 9, 0), y + 10), slice(max(x - 9, 0), x + 10))
        distance = np.hypot(rows[around] - y, columns[around] - x) / radius
        inside = (distance < 1) & (labels[around] == FIELD)
        shade = (1 - 0.4 * distance[inside])[:, None]
        colour[around][inside] = np.array((45, 95, 40)) * shade + rng.normal(0, 6, shade.shape)
        labels[around][inside] = TREE
