"""Crops, turns and colours of whole batches on the device, in the manner of RandAugment.

What happens to a picture is drawn on the host as a pure function of (seed, epoch, index) and written down as numbers:
one affine map of places, one of colours, and a few strengths. The device only applies them, so thousands of pictures
are changed in a few milliseconds.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from crispseg.config import check_between, check_range
from crispseg.pretrain.draws import Whole, uniforms

Numbers = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Changes:
    """How pictures are changed. Probabilities and strengths; 0 switches a change off."""

    area: tuple[float, float] = (0.25, 1.0)  # share of the picture that a crop takes
    ratio: tuple[float, float] = (0.75, 1.3333)  # of a crop's sides
    flip: float = 0.5  # left-right; pictures from above are turned every way
    picks: int = 2  # changes per picture, out of the kinds below
    strength: float = 0.5  # of those, 0 to 1
    erase: float = 0.1  # chance that a box of the picture is greyed
    mix: float = 0.5  # chance that two pictures are mixed, or that a box of one is put into the other
    mixup: float = 0.8  # alpha of the beta distribution that mixed pictures' shares come from; 0 is off
    cutmix: float = 1.0  # likewise of the boxes' areas; 0 is off


def check_changes(how: Changes) -> None:
    """Refuse values that no picture can be changed by, each with its key."""
    check_range("changes.area", how.area, 1)
    check_range("changes.ratio", how.ratio)
    chances = {"flip": how.flip, "strength": how.strength, "erase": how.erase, "mix": how.mix}
    check_between({f"changes.{key}": value for key, value in chances.items()}, 0, 1)
    amounts = {"picks": how.picks, "mixup": how.mixup, "cutmix": how.cutmix}
    check_between({f"changes.{key}": value for key, value in amounts.items()}, 0, math.inf)


_KINDS = (
    "none", "rotate", "shear_x", "shear_y", "brightness", "contrast", "saturation", "hue", "grey", "solarise",
    "posterise", "sharpness",
)  # fmt: skip
_FIXED = 16  # numbers drawn per picture, beside three for each pick
_LUMA = np.array([0.299, 0.587, 0.114])
_MIDDLE = 127.5


class DrawnChanges(NamedTuple):
    """What happens to each of B pictures."""

    places: Tensor  # (B, 2, 3): where in the source, -1 to 1, a place of the result lies
    colours: Tensor  # (B, 3, 4): a matrix and an offset
    solarise: Tensor  # (B,) values above are inverted; 256 leaves all
    levels: Tensor  # (B,) steps of the values; 256 leaves all
    sharpness: Tensor  # (B,) above 0 sharper, below 0 smoother
    box: Tensor  # (B, 4) top, left, bottom, right of a greyed box, 0 to 1

    def to(self, device: torch.device) -> DrawnChanges:
        return DrawnChanges(*(x.to(device, non_blocking=True) for x in self))


def plan_changes(how: Changes, seed: int, epochs: Whole, indices: Whole, aerial: bool) -> DrawnChanges:
    """Drawn for each picture from its own (seed, epoch, index)."""
    u = uniforms(seed, epochs, indices, _FIXED + 3 * how.picks, "changes")
    count = len(u)
    places, colours = _crop(u, how, aerial), np.tile(np.eye(3, 4), (count, 1, 1))
    solarise, levels, sharpness = np.full(count, 256.0), np.full(count, 256.0), np.zeros(count)
    for pick in range(how.picks):
        kind, sign, size = u[:, _FIXED + 3 * pick : _FIXED + 3 * pick + 3].T
        chosen = (kind * len(_KINDS)).astype(int)
        amount = how.strength * size * np.where(sign < 0.5, -1.0, 1.0)
        is_kind = {name: chosen == number for number, name in enumerate(_KINDS)}
        places = places @ _place_change(is_kind, amount)
        colours = _colour_change(is_kind, amount) @ _homogeneous(colours)
        solarise = np.where(is_kind["solarise"], 256 * (1 - np.abs(amount)), solarise)
        levels = np.where(is_kind["posterise"], 2.0 ** np.round(8 - 5 * np.abs(amount)), levels)
        sharpness = np.where(is_kind["sharpness"], 1.8 * amount, sharpness)
    box = _box(u[:, 12:16], u[:, 11] < how.erase)
    values = (places[:, :2], colours, solarise, levels, sharpness, box)
    return DrawnChanges(*(torch.from_numpy(np.ascontiguousarray(x, np.float32)) for x in values))


def no_changes(count: int) -> DrawnChanges:
    """The whole picture as it is."""
    eye = torch.eye(3)[:2].expand(count, 2, 3)
    colours = torch.eye(3, 4).expand(count, 3, 4)
    whole = torch.full((count,), 256.0)
    return DrawnChanges(eye, colours, whole, whole, torch.zeros(count), torch.zeros(count, 4))


def _crop(u: Numbers, how: Changes, aerial: bool) -> Numbers:
    """(B, 3, 3) a random crop, flipped and turned."""
    area = how.area[0] + (how.area[1] - how.area[0]) * u[:, 0]
    ratio = np.exp(math.log(how.ratio[0]) + math.log(how.ratio[1] / how.ratio[0]) * u[:, 1])
    width, height = np.minimum(np.sqrt(area * ratio), 1.0), np.minimum(np.sqrt(area / ratio), 1.0)
    flip_x = np.where(u[:, 4] < how.flip, -1.0, 1.0)
    flip_y = np.where(u[:, 5] < how.flip, -1.0, 1.0) if aerial else np.ones(len(u))
    angle = np.floor(u[:, 6] * 4) * (math.pi / 2) if aerial else np.zeros(len(u))
    cosine, sine = np.round(np.cos(angle)), np.round(np.sin(angle))
    places = np.zeros((len(u), 3, 3))
    places[:, 0, 0], places[:, 0, 1] = width * flip_x * cosine, -width * flip_x * sine
    places[:, 1, 0], places[:, 1, 1] = height * flip_y * sine, height * flip_y * cosine
    places[:, 0, 2] = (1 - width) * (2 * u[:, 2] - 1)
    places[:, 1, 2] = (1 - height) * (2 * u[:, 3] - 1)
    places[:, 2, 2] = 1
    return places


def _place_change(is_kind: dict[str, NDArray[np.bool_]], amount: Numbers) -> Numbers:
    """(B, 3, 3) a turn of up to 60 degrees, or a shear of up to 0.6."""
    angle = np.where(is_kind["rotate"], amount * math.pi / 3, 0.0)
    change = np.tile(np.eye(3), (len(amount), 1, 1))
    change[:, 0, 0], change[:, 0, 1] = np.cos(angle), np.where(is_kind["shear_x"], 0.6 * amount, -np.sin(angle))
    change[:, 1, 0], change[:, 1, 1] = np.where(is_kind["shear_y"], 0.6 * amount, np.sin(angle)), np.cos(angle)
    return change


def _homogeneous(colours: Numbers) -> Numbers:
    last = np.tile(np.array([[0.0, 0.0, 0.0, 1.0]]), (len(colours), 1, 1))
    return np.concatenate([colours, last], axis=1)


def _colour_change(is_kind: dict[str, NDArray[np.bool_]], amount: Numbers) -> Numbers:
    """(B, 3, 4) a change of brightness, contrast, saturation or hue, or none."""
    grey = np.tile(_LUMA, (3, 1))
    matrix = np.tile(np.eye(3), (len(amount), 1, 1))
    contrast = np.where(is_kind["contrast"], 1 + 0.9 * amount, 1.0)
    saturation = np.where(is_kind["saturation"], 1 + 0.9 * amount, np.where(is_kind["grey"], 0.0, 1.0))
    matrix = grey + saturation[:, None, None] * (matrix - grey)
    matrix = _about_grey(np.where(is_kind["hue"], amount * math.pi / 2, 0.0)) @ matrix
    matrix = contrast[:, None, None] * matrix
    offset = np.where(is_kind["brightness"], 100 * amount, 0.0) + (1 - contrast) * _MIDDLE
    return np.concatenate([matrix, np.broadcast_to(offset[:, None, None], (len(amount), 3, 1))], axis=2)


def _about_grey(angle: Numbers) -> Numbers:
    """(B, 3, 3) turns of red-green-blue space about its grey axis."""
    cosine, sine = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    cross = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) / math.sqrt(3)
    return cosine * np.eye(3) + sine * cross + (1 - cosine) / 3


def _box(u: Numbers, wanted: NDArray[np.bool_]) -> Numbers:
    """(B, 4) boxes of up to a third of the picture; empty where not wanted."""
    height, width = 0.1 + 0.5 * u[:, 0], 0.1 + 0.5 * u[:, 1]
    top, left = u[:, 2] * (1 - height), u[:, 3] * (1 - width)
    return np.stack([top, left, top + height, left + width], axis=1) * wanted[:, None]


def apply_changes(pictures: Tensor, plan: DrawnChanges, size: int) -> Tensor:
    """(B, 3, S, S) of 8 bits -> (B, 3, size, size) of floats, 0 to 255."""
    finer = max(1, round(pictures.shape[-1] / size))  # sampled so finely, then averaged: nothing aliases
    shape = [len(pictures), 3, size * finer, size * finer]
    grid = functional.affine_grid(plan.places, shape, align_corners=False)
    x = functional.grid_sample(pictures.float(), grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    x = functional.avg_pool2d(x, finer) if finer > 1 else x
    x = _recoloured(x, plan.colours).clamp_(0, 255)
    x = torch.where(x >= plan.solarise[:, None, None, None], 255 - x, x)
    step = 256 / plan.levels[:, None, None, None]
    x = torch.where(step > 1, torch.floor(x / step) * step, x)
    smooth = functional.avg_pool2d(functional.pad(x, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    x = (x + plan.sharpness[:, None, None, None] * (x - smooth)).clamp_(0, 255)
    return torch.where(inside(plan.box, size), _MIDDLE, x)


def _recoloured(x: Tensor, colours: Tensor) -> Tensor:
    # Element by element and not as a matrix product, whose rounding may depend on what else is in the batch.
    bands = []
    for band in range(3):
        row = colours[:, band, :, None, None]  # (B, 4, 1, 1)
        bands.append(x[:, 0] * row[:, 0] + x[:, 1] * row[:, 1] + x[:, 2] * row[:, 2] + row[:, 3])
    return torch.stack(bands, dim=1)


def inside(box: Tensor, size: int) -> Tensor:
    """(B, 1, size, size) whether a pixel's centre lies in its picture's box (top, left, bottom, right, 0 to 1)."""
    centres = (torch.arange(size, device=box.device) + 0.5) / size
    top, left, bottom, right = (box[:, i, None] for i in range(4))
    rows, columns = (centres >= top) & (centres < bottom), (centres >= left) & (centres < right)
    return (rows[:, :, None] & columns[:, None, :])[:, None]
