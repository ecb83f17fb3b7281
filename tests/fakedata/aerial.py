"""A generated aerial scene with its true class map: fields, water, roads, buildings with shadows, and trees."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CLASSES = ("road", "building", "field", "tree", "water")
PALETTE = ((255, 255, 255), (0, 0, 255), (0, 255, 255), (0, 255, 0), (255, 195, 128))
ROAD, BUILDING, FIELD, TREE, WATER = range(5)


def generate(height: int, width: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """An RGB image (H, W, 3) and its class ids (H, W); the same seed gives the same scene."""
    canvas = _Canvas(height, width, seed)
    canvas.lay_fields()
    canvas.add_water()
    canvas.add_roads()
    canvas.add_buildings()
    canvas.add_trees()
    noise = canvas.rng.normal(0, 6, (height, width, 1)) + canvas.rng.normal(0, 3, (height, width, 3))
    return np.clip(canvas.colour + noise, 0, 255).astype(np.uint8), canvas.labels


class _Canvas:
    """A scene being painted: colours, labels, and the place of every pixel."""

    def __init__(self, height: int, width: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.rows, self.columns = np.mgrid[:height, :width].astype(np.float32)
        self.colour = np.zeros((height, width, 3), np.float32)
        self.labels = np.full((height, width), FIELD, np.uint8)

    def lay_fields(self) -> None:
        """Patches around random seeds, each with its own green or brown and its own furrows."""
        rng, rows, columns = self.rng, self.rows, self.columns
        seeds = rng.uniform(0, 1, (12, 2)) * self.labels.shape
        patch = np.argmin([(rows - y) ** 2 + (columns - x) ** 2 for y, x in seeds], axis=0)
        tones = rng.uniform((90, 110, 50), (150, 150, 90), (12, 3))
        angles, periods = rng.uniform(0, np.pi, 12), rng.uniform(5, 11, 12)
        across = rows * np.sin(angles[patch]) + columns * np.cos(angles[patch])
        self.colour[:] = tones[patch] + 8 * np.sin(across * 2 * np.pi / periods[patch])[..., None]

    def add_water(self) -> None:
        for _ in range(2):
            y, x = self.rng.uniform(0.1, 0.9, 2) * self.labels.shape
            angle = np.arctan2(self.rows - y, self.columns - x)
            shore = 0.1 + 0.03 * np.sin(3 * angle + self.rng.uniform(0, 6)) + 0.02 * np.sin(5 * angle)
            inside = np.hypot(self.rows - y, self.columns - x) < shore * min(self.labels.shape)
            self.colour[inside], self.labels[inside] = (60, 85, 105), WATER

    def add_roads(self) -> None:
        for _ in range(5):
            angle, (y, x) = self.rng.uniform(0, np.pi), self.rng.uniform(0, 1, 2) * self.labels.shape
            offset = (self.rows - y) * np.cos(angle) - (self.columns - x) * np.sin(angle)
            along = (self.rows - y) * np.sin(angle) + (self.columns - x) * np.cos(angle)
            inside = np.abs(offset + 4 * np.sin(along / 40)) < self.rng.uniform(3, 6)
            self.colour[inside], self.labels[inside] = self.rng.uniform(105, 135), ROAD

    def add_buildings(self) -> None:
        """Rectangles with a bright half of the roof, casting a shadow on the field beside them."""
        height, width = self.labels.shape
        for _ in range(height * width // 2500):
            h, w = self.rng.integers(8, 26, 2)
            y, x = self.rng.integers(0, max(height - h, 1)), self.rng.integers(0, max(width - w, 1))
            if (self.labels[y : y + h, x : x + w] != FIELD).any():
                continue
            shade = slice(y + 3, y + h + 3), slice(x + 3, x + w + 3)
            self.colour[shade] *= np.where(self.labels[shade] == FIELD, 0.55, 1.0)[..., None]
            self.colour[y : y + h, x : x + w] = self.rng.uniform((120, 70, 60), (200, 140, 130))
            self.colour[y : y + h // 2, x : x + w] *= 1.15
            self.labels[y : y + h, x : x + w] = BUILDING

    def add_trees(self) -> None:
        height, width = self.labels.shape
        for _ in range(height * width // 1200):
            y, x, radius = self.rng.integers(0, height), self.rng.integers(0, width), self.rng.uniform(3, 8)
            around = (slice(max(y - 9, 0), y + 10), slice(max(x - 9, 0), x + 10))
            distance = np.hypot(self.rows[around] - y, self.columns[around] - x) / radius
            inside = (distance < 1) & (self.labels[around] == FIELD)
            light = (1 - 0.4 * distance[inside])[:, None]
            self.colour[around][inside] = np.array((45, 95, 40)) * light + self.rng.normal(0, 6, light.shape)
            self.labels[around][inside] = TREE
