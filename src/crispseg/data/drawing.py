"""Images and masks as pictures people can look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from crispseg.data.colours import Colour, nearest
from crispseg.data.images import Array
from crispseg.data.labels import Mask
from crispseg.files import replacing

THUMBNAIL = 160  # side of a picture on a contact sheet, px
# For pixels that are not labelled: the first that no class comes near, black where it is free.
_UNLABELLED: tuple[Colour, ...] = ((0, 0, 0), (128, 128, 128), (255, 0, 255), (255, 255, 255), (90, 0, 60))
# For what is wrong: the first that no class looks like. It is far from what EXPECTED has and from the grey image below
# it in lightness, so the colour-blind see it, too; a lighter magenta is the blue of water to them.
_WRONG: tuple[Colour, ...] = ((120, 0, 105), (255, 0, 255), (255, 120, 0), (230, 20, 40))
_NEAR = 60  # how far apart two colours are to be told from each other, in their sum of differences
_ALIKE = 30.0  # nearer in CIE Lab than this, a mark could be taken for a class
_OUTLINE = 0.5  # how light a class's outline is, of its colour

Thumbnails = tuple[str, Array, Array]  # name, image, labels


def to_rgb(image: Array) -> Array:
    """(H, W, bands) of any type as 8-bit (H, W, 3): the first three bands, stretched between their 2nd and 98th
    percentile unless they are 8 bit already."""
    shown = image[..., :3] if image.shape[2] >= 3 else image[..., :1].repeat(3, axis=-1)
    if shown.dtype == np.uint8:
        return np.ascontiguousarray(shown)
    values = np.nan_to_num(shown.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = np.percentile(values, (2, 98))
    scaled: Array = (np.clip((values - low) / max(high - low, 1e-12), 0, 1) * 255).astype(np.uint8)
    return scaled


def unlabelled_colour(palette: Sequence[Colour]) -> Colour:
    """What pixels without a label are painted with: black, or where a class is black something else."""

    def distance(colour: Colour) -> int:
        return min((sum(abs(a - b) for a, b in zip(colour, each, strict=True)) for each in palette), default=765)

    free = [colour for colour in _UNLABELLED if distance(colour) >= _NEAR]
    return free[0] if free else max(_UNLABELLED, key=distance)


def wrong_colour(palette: Sequence[Colour]) -> Colour:
    """What wrong pixels are painted with, in no class's colour."""
    free = [colour for colour in _WRONG if nearest(colour, palette) >= _ALIKE]
    return free[0] if free else max(_WRONG, key=lambda colour: nearest(colour, palette))


def paint(mask: Mask, palette: Sequence[Colour], unlabelled: Colour | None = None) -> Array:
    """(H, W) ids as (H, W, 3) colours; ignored pixels have the colour `unlabelled`, or one that no class has."""
    colours = np.empty((256, 3), np.uint8)
    colours[:] = unlabelled_colour(palette) if unlabelled is None else unlabelled
    colours[: len(palette)] = palette
    painted: Array = colours[mask]
    return painted


def outline(painted: Array, mask: Mask) -> Array:
    """The picture (H, W, 3) with thin lines where classes meet: the last pixel of the upper or left one, in its own
    colour but darker, so that what is a pixel wide still shows what it is."""
    meet = np.zeros(mask.shape, bool)
    meet[:-1] |= mask[:-1] != mask[1:]
    meet[:, :-1] |= mask[:, :-1] != mask[:, 1:]
    outlined: Array = np.where(meet[..., None], painted * _OUTLINE, painted).astype(np.uint8)
    return outlined


def draw_thumbnails(image: Array, mask: Mask | None, palette: Sequence[Colour]) -> tuple[Array, Array]:
    """A small image and its small labels; white where there are none."""
    stride = max(1, -(-max(image.shape[:2]) // THUMBNAIL))
    small = image[::stride, ::stride]
    blank = np.full((*small.shape[:2], 3), 255, np.uint8)
    return to_rgb(small), blank if mask is None else paint(mask[::stride, ::stride], palette)


def draw_contact_sheet(pictures: Sequence[Thumbnails], path: str | Path) -> Path:
    """Small pictures of images, and beside each its labels, into a png."""
    from PIL import Image, ImageDraw

    across = min(3, len(pictures))
    down = -(-len(pictures) // across)
    cell = (2 * THUMBNAIL + 12, THUMBNAIL + 20)
    sheet = Image.new("RGB", (across * cell[0], down * cell[1]), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (name, image, mask) in enumerate(pictures):
        x, y = number % across * cell[0], number // across * cell[1]
        sheet.paste(Image.fromarray(image), (x, y + 14))
        sheet.paste(Image.fromarray(mask), (x + THUMBNAIL + 4, y + 14))
        draw.text((x, y), name[:48], fill="black")
    with replacing(path) as aside:
        sheet.save(aside, "png")
    return Path(path)
