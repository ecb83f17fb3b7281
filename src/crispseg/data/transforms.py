"""Training augmentation as tensor operations, a pure function of (seed, epoch, index).

Each sample draws from its own counter-based stream, so it is the same whatever the number of workers or
processes. Only the source window that the crop needs is read; pixels stay 8 bit until the colours are changed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from crispseg.config import check_between, check_range
from crispseg.data.classes import IGNORE
from crispseg.data.images import Array
from crispseg.data.labels import Mask


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """How training samples are made. Probabilities and strengths; 0 switches a change off."""

    crop: int = 512
    scale: tuple[float, float] = (0.5, 2.0)
    class_cap: float = 0.75  # no class may fill more of a crop's labelled pixels ...
    tries: int = 10  # ... unless so many places were tried
    flip: float = 0.5  # left-right, and likewise up-down
    quarter_turns: bool = True
    mirror: bool = False  # an image smaller than the crop goes on as its mirror image, labels too; else it is padded
    photometric: float = 0.5  # chance of each of the changes below
    brightness: float = 0.125  # of the value range, added
    contrast: float = 0.5  # 1 - c to 1 + c, multiplied
    saturation: float = 0.5  # likewise, about the grey of each pixel; three bands only
    hue: float = 0.1  # of a full turn about the grey axis, either way; three bands only
    gain: float = 0.1  # 1 - g to 1 + g, each band its own; for other band counts


def check_augmentation(how: Augmentation) -> None:
    """Refuse values that no training can use, each with its key."""
    check_range("augment.scale", how.scale)
    check_between({"augment.flip": how.flip, "augment.photometric": how.photometric}, 0, 1)
    strengths = ("class_cap", "brightness", "contrast", "saturation", "hue", "gain")
    check_between({f"augment.{key}": getattr(how, key) for key in strengths}, 0, math.inf)


class Draws:
    """Uniform numbers that depend on (seed, epoch, index) alone: Philox, keyed by a hash of the three."""

    def __init__(self, seed: int, epoch: int, index: int) -> None:
        digest = hashlib.blake2b(f"{seed}/{epoch}/{index}".encode(), digest_size=16).digest()
        self._stream = np.random.Philox(key=int.from_bytes(digest, "big"))

    def unit(self) -> float:
        """In [0, 1): the top 53 bits of a raw draw, so that no library version can change the numbers."""
        return float(int(self._stream.random_raw()) >> 11) * 2.0**-53

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.unit()

    def below(self, count: int) -> int:
        return int(self.unit() * count)

    def chance(self, probability: float) -> bool:
        return self.unit() < probability


@dataclasses.dataclass(frozen=True)
class Place:
    """Along one axis: the source pixels read, and where they land in the crop."""

    start: int
    length: int
    offset: int
    size: int


def augment(
    image: Array,
    mask: Mask,
    draws: Draws,
    how: Augmentation,
    fill: Sequence[float],
    value_range: float,
) -> tuple[Tensor, Tensor]:
    """(H, W, bands) and (H, W) -> (bands, crop, crop) in raw units and (crop, crop) of ids.

    8-bit images stay 8 bit, others become float32; the labels are 8 bit. `fill` is the value of each band outside
    the image, where it is not mirrored; the mask there is 255. `value_range` is how far apart dark and bright values
    are, 255 for 8 bit.
    """
    scale = draws.between(*how.scale)
    rows, columns, chosen = _choose_place(mask, draws, how, scale)
    pixels = _resample(image, rows, columns, how, fill)
    flip_x, flip_y, turns = draws.chance(how.flip), draws.chance(how.flip), draws.below(4)
    turns = turns if how.quarter_turns else 0
    pixels = _turn(pixels, flip_x, flip_y, turns).contiguous()
    labels = _turn(torch.from_numpy(chosen), flip_x, flip_y, turns).contiguous()
    matrix, offset = colour_change(draws, how, value_range, pixels.shape[0])
    return _change_colours(pixels, matrix, offset), labels


def _choose_place(mask: Mask, draws: Draws, how: Augmentation, scale: float) -> tuple[Place, Place, Mask]:
    """Where to crop: the first of `tries` places whose commonest class stays within the cap, else the last one."""
    height, width = mask.shape
    for _ in range(max(how.tries, 1)):
        rows = _place(height, how.crop, scale, draws)
        columns = _place(width, how.crop, scale, draws)
        labels = _nearest(mask, rows, columns, how)
        if within_cap(labels, how.class_cap):
            break
    return rows, columns, labels


def _place(extent: int, crop: int, scale: float, draws: Draws) -> Place:
    """A random stretch of crop / scale source pixels; an axis that is shorter is padded to the crop."""
    wanted = max(round(crop / scale), 1)
    position = draws.unit()  # drawn in either case, so that what follows does not depend on the size
    if wanted <= extent:
        return Place(int(position * (extent - wanted + 1)), wanted, 0, crop)
    size = min(max(round(extent * crop / wanted), 1), crop)
    return Place(0, extent, int(position * (crop - size + 1)), size)


def _nearest(mask: Mask, rows: Place, columns: Place, how: Augmentation) -> Mask:
    """The labels of a crop, each from the source pixel its centre lies in; 255 outside the image."""
    crop = how.crop
    taken = mask[rows.start : rows.start + rows.length, columns.start : columns.start + columns.length]
    taken = taken.take(_centres(rows), axis=0).take(_centres(columns), axis=1)
    if (rows.size, columns.size) == (crop, crop):
        return taken
    if how.mirror:
        return taken.take(_mirrored(rows, crop), axis=0).take(_mirrored(columns, crop), axis=1)
    labels = np.full((crop, crop), IGNORE, np.uint8)
    labels[rows.offset : rows.offset + rows.size, columns.offset : columns.offset + columns.size] = taken
    return labels


def _centres(place: Place) -> NDArray[np.intp]:
    return ((np.arange(place.size) + 0.5) * (place.length / place.size)).astype(np.intp)


def _mirrored(place: Place, crop: int) -> NDArray[np.intp]:
    """For each place of the crop, the one of the image that shows there: forwards, backwards, forwards, ..."""
    back_and_forth = (np.arange(crop) - place.offset) % (2 * place.size)
    return np.minimum(back_and_forth, 2 * place.size - 1 - back_and_forth)


def within_cap(labels: Mask, cap: float) -> bool:
    """Whether no class holds more than `cap` of the labelled pixels; one with none labelled is not."""
    counts = torch.bincount(torch.from_numpy(labels).reshape(-1), minlength=256)[:IGNORE]
    total = int(counts.sum())
    return total > 0 and int(counts.max()) <= cap * total


def _resample(image: Array, rows: Place, columns: Place, how: Augmentation, fill: Sequence[float]) -> Tensor:
    """(bands, crop, crop), in the image's type where it is 8 bit, else float32."""
    taken = np.array(image[rows.start : rows.start + rows.length, columns.start : columns.start + columns.length])
    if taken.dtype != np.uint8:
        taken = taken.astype(np.float32)
    pixels = torch.from_numpy(taken).permute(2, 0, 1)[None]  # (1, bands, h, w), bands last in memory: the fast path
    size = (rows.size, columns.size)
    if size != pixels.shape[2:]:
        smaller = size[0] < pixels.shape[2]
        pixels = F.interpolate(pixels, size=size, mode="bilinear", align_corners=False, antialias=smaller)
    crop = how.crop
    if size == (crop, crop):
        return pixels[0]
    if how.mirror:
        down, across = (torch.from_numpy(_mirrored(place, crop)) for place in (rows, columns))
        return pixels[0].index_select(1, down).index_select(2, across)
    values = torch.tensor(fill, dtype=torch.float32)
    padded = values.round().to(pixels.dtype) if pixels.dtype == torch.uint8 else values
    canvas = padded[:, None, None].repeat(1, crop, crop)
    canvas[:, rows.offset : rows.offset + rows.size, columns.offset : columns.offset + columns.size] = pixels[0]
    return canvas


def _turn(x: Tensor, flip_x: bool, flip_y: bool, turns: int) -> Tensor:
    """The same flips and quarter turns for (bands, crop, crop) and (crop, crop)."""
    axes = [axis for axis, flip in ((-1, flip_x), (-2, flip_y)) if flip]
    x = x.flip(axes) if axes else x
    return torch.rot90(x, turns, (-2, -1)) if turns else x


def _change_colours(x: Tensor, matrix: NDArray[np.float64], offset: float) -> Tensor:
    """All changes at once: each is affine in the bands, so together they are one matrix and one offset."""
    if offset == 0 and np.array_equal(matrix, np.eye(len(matrix))):
        return x
    values = x.float()
    result = torch.full_like(values, offset)
    # Element by element and not as a matrix product, whose rounding may depend on the number of threads.
    for band, weights in zip(result, matrix.tolist(), strict=True):
        for source, weight in zip(values, weights, strict=True):
            if weight:
                band.add_(source, alpha=weight)
    return result.round_().clamp_(0, 255).to(torch.uint8) if x.dtype == torch.uint8 else result


_LUMA = np.array([0.299, 0.587, 0.114])


def colour_change(draws: Draws, how: Augmentation, value_range: float, bands: int) -> tuple[NDArray[np.float64], float]:
    """The matrix (bands, bands) and the offset of a sample's change of brightness, contrast and colour."""
    # Everything is drawn before it is decided upon, so that switching one change off leaves the others as they were.
    chances = [draws.chance(how.photometric) for _ in range(5)]
    brightness = draws.between(-how.brightness, how.brightness) * value_range
    contrast = draws.between(1 - how.contrast, 1 + how.contrast)
    saturation = draws.between(1 - how.saturation, 1 + how.saturation)
    hue = draws.between(-how.hue, how.hue) * 2 * math.pi
    matrix = np.eye(bands)
    if bands == 3:
        if chances[2]:
            grey = np.tile(_LUMA, (3, 1))
            matrix = grey + saturation * (matrix - grey)
        if chances[3]:
            matrix = _about_grey(hue) @ matrix
    elif chances[4]:
        matrix = np.diag([draws.between(1 - how.gain, 1 + how.gain) for _ in range(bands)])
    offset = brightness if chances[0] else 0.0
    if chances[1]:
        matrix, offset = matrix * contrast, offset * contrast
    return matrix, offset


def _about_grey(angle: float) -> NDArray[np.float64]:
    """Rotation of red-green-blue space about its grey axis: hue turns, greys stay."""
    cosine, sine = math.cos(angle), math.sin(angle)
    cross = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) / math.sqrt(3)
    return cosine * np.eye(3) + sine * cross + (1 - cosine) / 3
