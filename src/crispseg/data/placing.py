"""Whether the pixels of a mask lie where those of its image do, as far as the files themselves tell."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from crispseg.data.images import Header, Place, is_turned, read_place
from crispseg.errors import UserError

_FAR = 1.0  # px that a corner may be off: programs differ in whether a pixel's place is its middle or its corner


def check_placing(image: Path, mask: Path, size: Header) -> None:
    """Refuse a mask of the image's size that is known to lie otherwise."""
    for path in (image, mask):
        if is_turned(path):
            raise UserError(
                f"{path} has a note (EXIF) that it is to be shown turned or mirrored, which some programs heed and "
                "others do not, so image and mask may lie differently: turn its pixels (mogrify -auto-orient), or take "
                "the note out (mogrify -strip) if they lie as those of the other"
            )
    place, other = read_place(image), read_place(mask)
    off = 0.0 if place is None or other is None else _farthest(place, other, size)
    if off > _FAR:
        raise UserError(
            f"{mask} lies elsewhere on the ground than its image {image.name}: a corner is {off:.4g} px off; warp it "
            "onto the pixels of the image, or take its reference out if that is wrong"
        )


def _farthest(image: Place, mask: Place, size: Header) -> float:
    """By how many pixels of the image a corner of the mask lies off at most."""
    corners = np.array([[x, y, 1] for x in (0, size.width) for y in (0, size.height)], np.float64).T  # (3, 4)
    matrices = [np.array([[*place[:3]], [*place[3:]], [0, 0, 1]], np.float64) for place in (image, mask)]
    seen = np.linalg.solve(matrices[0], matrices[1] @ corners)  # where the image has the mask's corners
    return float(np.hypot(*(seen - corners)[:2]).max())
