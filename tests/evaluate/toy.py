"""Models whose answers are known beforehand, and folders of images to show them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from crispseg.models.base import ModelInfo, SegmentationModel
from tests.fakedata.scenes import scene

Array = NDArray[Any]
NAMES = ("meadow", "water", "roof")
COLOURS = np.array([[20, 200, 30], [10, 20, 220], [210, 40, 60]], np.uint8)
MEAN, STD = (100.0, 90.0, 110.0), (50.0, 60.0, 40.0)


class ColourModel(SegmentationModel):
    """Looks at one pixel: the class of the nearest colour gets the probability `confidence`, the others the rest."""

    def __init__(self, num_classes: int, in_channels: int, confidence: float = 0.9) -> None:
        super().__init__()
        self.colours = nn.Parameter(torch.zeros(num_classes, in_channels))
        self.advantage = math.log(confidence * (num_classes - 1) / (1 - confidence))

    def forward(self, image: Tensor) -> Tensor:
        # (B, classes, bands, H, W) -> (B, classes, H, W)
        away = (image[:, None] - self.colours[None, :, :, None, None]).square().sum(2)
        nearest = nn.functional.one_hot(away.argmin(1), self.num_classes).movedim(-1, 1)
        return self.advantage * nearest.to(image.dtype)


class BlurModel(SegmentationModel):
    """Sees its neighbours: random filters, so that what it says depends on where a window ends."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.filter = nn.Conv2d(in_channels, num_classes, 7, padding=3)

    def forward(self, image: Tensor) -> Tensor:
        return 4 * self.filter(image)


def _created(model: SegmentationModel, name: str, classes: int, bands: int, **options: Any) -> SegmentationModel:
    """As `create_model` would; these are not registered, or the tests of all models would find them."""
    model.name, model.options, model.num_classes, model.in_channels = name, options, classes, bands
    return model.eval()


def colour_model(classes: tuple[str, ...] = NAMES, bands: int = 3, **options: Any) -> SegmentationModel:
    made = ColourModel(len(classes), bands, **options)
    model = _created(made, "toy_colour", len(classes), bands, **options)
    model.info = ModelInfo(classes=classes, mean=(100.0,) * bands, std=(50.0,) * bands)
    if bands == 3 and len(classes) == 3:
        model.info = ModelInfo(classes=classes, mean=MEAN, std=STD)
        colours = (COLOURS - np.array(MEAN)) / np.array(STD)
        model.colours.data = torch.tensor(colours, dtype=torch.float32)
    return model


def blur_model() -> SegmentationModel:
    model = _created(BlurModel(3, 3), "toy_blur", 3, 3)
    model.info = ModelInfo(classes=NAMES, mean=MEAN, std=STD)
    return model


def labels(seed: int, size: tuple[int, int]) -> Array:
    return scene(np.random.default_rng(seed), size, classes=3)[1]


def spoilt(ids: Array, seed: int, share: float = 0.2) -> Array:
    """The ids with some pixels of another class: what a colour model will say."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(ids.shape) < share
    return np.where(wrong, (ids + rng.integers(1, 3, ids.shape)) % 3, ids).astype(np.uint8)


def write_folder(root: Path, images: dict[str, tuple[Array, Array]], split: str = "val") -> Path:
    """A data folder: name -> (ids the image shows, ids of its mask). All images are in one split."""
    from PIL import Image

    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, (shown, true) in images.items():
        Image.fromarray(COLOURS[shown]).save(root / "images" / f"{name}.png")
        Image.fromarray(true).save(root / "masks" / f"{name}.png")
    rows = [f"{name},{split}" for name in images]
    (root / "split.csv").write_text("\n".join(["name,split", *rows]) + "\n")
    (root / "classes.csv").write_text("\n".join(["name,id", *(f"{n},{i}" for i, n in enumerate(NAMES))]) + "\n")
    return root


def counted(shown: Array, true: Array) -> Array:
    """The confusion matrix by a loop over pixels."""
    matrix = np.zeros((3, 3), np.int64)
    for t, p in zip(true.ravel().tolist(), shown.ravel().tolist(), strict=True):
        if t != 255:
            matrix[t, p] += 1
    return matrix
