"""Everything needed to make a scene's bands, in one object that can be sent to another process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator

from crispseg.errors import UserError, unknown
from crispseg.fused.model import wholly_fused
from crispseg.models.base import SegmentationModel
from crispseg.models.device import find_device
from crispseg.ops.common.hardware import multiplies_bfloat16
from crispseg.predict.bands import Pace, finished_bands
from crispseg.predict.evaluate import PRECISIONS, Evaluator
from crispseg.predict.plan import ScenePlan
from crispseg.raster.products import Band, Products
from crispseg.raster.source import Source

AUTO = "auto"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What decides the map, beside the scene and the model."""

    tile: int = 1024
    overlap: int | None = None  # None: a quarter of the tile
    tta: str = "none"  # or "flip", "d4"
    precision: str = "auto"  # or "float32", "bfloat16"
    device: str | None = None  # None: an accelerator if there is one
    exact: bool = False  # the scene as one image instead of tiles

    def settled(self, model: SegmentationModel) -> Settings:
        """With the precision that `auto` stands for: bfloat16 where model and device are made for it. Refuses what does
        not go together."""
        if self.exact and (self.tta != "none" or self.precision == "bfloat16"):
            raise UserError("--exact runs the scene once, in float32: leave out --tta and --precision")
        if self.precision not in (AUTO, *PRECISIONS):
            raise unknown("precision", self.precision, (AUTO, *PRECISIONS))
        if self.precision != AUTO:
            return self
        half = not self.exact and wholly_fused(model) and multiplies_bfloat16(find_device(self.device))
        return dataclasses.replace(self, precision="bfloat16" if half else "float32")


@dataclasses.dataclass
class Work:
    source: Source
    model: SegmentationModel
    plan: ScenePlan
    settings: Settings
    products: Products
    pace: Pace

    def bands(self, strips: range, on_tile: Callable[[], None] = lambda: None) -> Generator[Band]:
        """The finished bands of neighbouring strips."""
        return finished_bands(self.source, self.evaluator(), self.plan, strips, self.products, self.pace, on_tile)

    def evaluator(self) -> Evaluator:
        """The fused model stays with the model, for the next scene: to fuse it takes longer than a small one."""
        settings = self.settings
        return Evaluator(self.model, find_device(settings.device), settings.tta, settings.precision, keep=True)
