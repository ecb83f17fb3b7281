"""At which scale a model is shown an image: as it is, or with pixels of a size that the model knows."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from crispseg.errors import UserError, unknown
from crispseg.geo.grid import Grid
from crispseg.models.base import ModelInfo, SegmentationModel
from crispseg.raster.resample import ResampledSource
from crispseg.raster.source import Source

MODEL, SCENE = "model", "scene"  # resolutions in words: one that the model knows, or the scene's own
_TOLERANCE = 1.5  # how far a scene's pixels may differ in size from the model's, where the card has no range
_COARSEST = 4.0  # coarser scenes by this factor are not enlarged: there is nothing in them to see
_SLACK = 1.02  # pixels are rarely of a round size


class Scaled(NamedTuple):
    """An image as the model is shown it, its grid, and what the user should know about it."""

    source: Source
    grid: Grid
    remarks: list[str]


def check_scale(resolution: float | str | None, pixel_size: float | None) -> None:
    """Refuse what is neither a size nor a word for one."""
    if isinstance(resolution, str) and resolution not in (MODEL, SCENE):
        raise unknown("resolution", resolution, (MODEL, SCENE))
    if isinstance(resolution, float | int) and not 0 < resolution < math.inf:
        raise UserError(f"the resolution must be positive, not {resolution}")
    if pixel_size is not None and not 0 < pixel_size < math.inf:
        raise UserError(f"the size of a pixel must be a positive number of metres, not {pixel_size}")


def state_size(name: str, grid: Grid, pixel_size: float | None) -> tuple[Grid, list[str]]:
    """The grid with pixels of the size that the user says, where it does not say one itself; and a remark."""
    if pixel_size is None:
        return grid, []
    if grid.area_unit == "px":
        return dataclasses.replace(grid, stated=(pixel_size, pixel_size)), []
    here = _side(grid)
    if 1 / _SLACK < here / pixel_size < _SLACK:
        return grid, []
    return grid, [f"{name} says itself that its pixels are of {here:.3g} m: --pixel-size is for scenes that do not"]


def at_scale(name: str, source: Source, grid: Grid, model: SegmentationModel, resolution: float | str | None) -> Scaled:
    """`resolution` is metres per pixel, "model" for those that the model knows, "scene" for the image's own, or
    None: the image's own where the model has seen such, else the nearest that it has."""
    wanted, remarks = _wanted(name, grid, model, resolution)
    resampled = grid if wanted is None else grid.resampled(wanted)
    if (resampled.height, resampled.width) == (grid.height, grid.width):
        return Scaled(source, grid, remarks)
    seen = ResampledSource(source, resampled.height, resampled.width, model.info.mean)
    return Scaled(seen, resampled, remarks)


def expected(info: ModelInfo) -> tuple[float, float] | None:
    """The finest and the coarsest pixels that a model's card vouches for, in metres; None if it does not say."""
    if info.resolutions is not None or info.resolution is None:
        return info.resolutions
    return info.resolution / _TOLERANCE, info.resolution * _TOLERANCE


def tell_scale(grid: Grid, shown: Grid) -> str:
    """At which size pixels are read."""
    if grid.area_unit == "px":
        return "pixels of unknown size"
    if shown is grid:
        return f"pixels of {_side(grid):.4g} m as they are"
    return f"pixels of {_side(grid):.4g} m resampled to {_side(shown):.4g} m"


def _wanted(
    name: str, grid: Grid, model: SegmentationModel, resolution: float | str | None
) -> tuple[float | None, list[str]]:
    """What to resample to, None for the image as it is, and what the user should know about it."""
    suits = expected(model.info)
    if resolution == MODEL and suits is None:
        raise UserError(f"the card of model {model.title!r} does not say its resolution; give --resolution in metres")
    if grid.area_unit == "px":
        if resolution is None or resolution == SCENE:
            return None, []
        raise UserError(
            f"{name} cannot be resampled: it {grid.lack}, so the size of its pixels in metres is unknown; "
            "say it with --pixel-size"
        )
    if resolution == MODEL and model.info.resolution is not None:
        return model.info.resolution, []
    if isinstance(resolution, float | int):
        return resolution, []
    if suits is None:
        return None, []
    here = _side(grid)
    if suits[0] <= here * _SLACK and here <= suits[1] * _SLACK:
        return None, []
    nearest = suits[0] if here < suits[0] else suits[1]
    if resolution == MODEL:
        return nearest, []
    known = f"{name} has pixels of {here:.3g} m and the model was trained for {suits[0]:.3g} to {suits[1]:.3g} m"
    if resolution == SCENE or here > _COARSEST * suits[1]:
        return None, [f"{known}: expect a poor map"]
    return nearest, [f"{known}: it is resampled to {nearest:.3g} m (--resolution scene leaves it as it is)"]


def _side(grid: Grid) -> float:
    return math.sqrt(math.prod(grid.pixel_size()))
