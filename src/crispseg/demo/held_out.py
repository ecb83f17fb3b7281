"""What the demonstration shows: real imagery that no shipped model was trained on, with its labels."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.data.classes import ClassTable
from crispseg.data.images import read_image
from crispseg.data.known import AERIAL
from crispseg.data.labels import read_labels
from crispseg.errors import UserError

DUBAI_TILE1, CHRISTCHURCH = (Path(__file__).with_name(name) for name in ("dubai_tile1", "christchurch"))
BUILDINGS = ClassTable(("background", "building"))


@dataclasses.dataclass(frozen=True)
class Labelled:
    """An image with its labels on disk; the README.md beside them says where they come from."""

    folder: Path
    table: ClassTable
    origin: str
    honesty: str  # what its scores are worth

    @property
    def image_path(self) -> Path:
        return self._file("image.jpg")

    @property
    def truth_path(self) -> Path:
        return self._file("truth.png")

    def image(self) -> NDArray[Any]:
        """(H, W, 3)"""
        return read_image(self.image_path)

    def truth(self) -> NDArray[np.uint8]:
        """(H, W) class ids, 255 where not labelled"""
        return read_labels(self.truth_path, self.table)[0]

    def _file(self, name: str) -> Path:
        path = self.folder / name
        if not path.is_file():
            raise UserError(f"the demonstration's scene is not complete: {path} is missing; install crispseg again")
        return path


@dataclasses.dataclass(frozen=True)
class HeldOut(Labelled):
    """The scene."""

    folder: Path = DUBAI_TILE1
    table: ClassTable = AERIAL
    origin: str = "Tile 1 of MBRSC's satellite images of Dubai, labelled by Humans in the Loop, public domain (CC0)."
    honesty: str = (
        "No pixel of this scene was trained on, but its tile is one of the two that validate: recipe and training "
        "length were chosen by the score on them, so the scores here are a little kind. The labels are coarse in "
        "places; some of what counts as an error is theirs."
    )
    close_up: tuple[slice, slice] = (slice(1450, 1931), slice(1790, 2391))  # crossing, yards and roofs


@dataclasses.dataclass(frozen=True)
class Patches(Labelled):
    """Patches beside each other that do not touch on the ground, and their buildings."""

    folder: Path = CHRISTCHURCH
    table: ClassTable = BUILDINGS
    origin: str = (
        "Aerial photographs of Christchurch: sourced from Land Information New Zealand (LINZ), licensed for reuse "
        "under CC BY 4.0, through the NZ32km2 set of H. Guo et al., whose buildings are the labels."
    )
    honesty: str = (
        "The first eight patches of the set's validation split, each segmented by itself. They were not trained on, "
        "but others of the same city were: this is what to expect where a model knows the place."
    )
    side: int = 224  # px of a patch
