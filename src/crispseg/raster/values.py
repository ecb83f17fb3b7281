"""Whether a scene's numbers can be of the kind a model was trained on. A 16-bit scene shown to an 8-bit model gives a
map that looks like one and means nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.errors import UserError
from crispseg.models.base import ModelInfo
from crispseg.raster.source import Pixels, Window

_BRIGHTEST = 255.0  # of 8-bit pixels
_SHARE = 1.5  # reflectances and other shares are not above it
_FAR = 20.0  # standard deviations between the means of scene and model that no other light explains
_FLAT = 32 * 32  # pixels of one number are no picture of anything
_SIDE, _ACROSS = 64, 3  # of the windows looked at, and how many in each direction


def some_windows(height: int, width: int) -> Iterator[Window]:
    """A few small windows, evenly over the scene, row after row."""
    side = min(_SIDE, height), min(_SIDE, width)
    for i in range(_ACROSS):
        for j in range(_ACROSS):
            yield Window((height - side[0]) * i // (_ACROSS - 1), (width - side[1]) * j // (_ACROSS - 1), *side)


def may_differ(info: ModelInfo, dtype: np.dtype[Any]) -> bool:
    """Whether the values are worth a look: 8-bit scenes fit 8-bit models, which is the usual case."""
    return not (dtype == np.uint8 and _eight_bit(info))


def unfit(info: ModelInfo, dtype: np.dtype[Any], sample: NDArray[Any]) -> str:
    """Why pixels of this type, of which `sample` (bands, n) are some, are not what the model knows; empty if they may
    be."""
    sample = sample[:, np.isfinite(sample).all(axis=0)].astype(np.float64)
    if not sample.size or not info.mean:
        return ""
    low, high = float(sample.min()), float(sample.max())
    has = f"it has {dtype} pixels from {low:g} to {high:g}"
    if _eight_bit(info) and not 0 <= low <= high <= _BRIGHTEST:
        return f"{has}, and the model was trained on 8-bit pixels, 0 to 255"
    if dtype.kind == "f" and low >= -_SHARE and high <= _SHARE and min(info.mean) > 10:
        return f"{has}, and the model was trained on pixels around {_around(info)}"
    if dtype == np.uint8 and min(info.mean) > _BRIGHTEST:
        return f"{has}, and the model was trained on {info.dtype or 'wider'} pixels around {_around(info)}"
    if dtype.kind == "b" and max(info.mean) > 1:
        return f"its pixels are true or false, and the model was trained on pixels around {_around(info)}"
    apart = np.abs(sample.mean(axis=1) - info.mean) / np.maximum(info.std, 1e-9)
    if info.dtype not in ("", "uint8") and dtype != np.uint8 and apart.max() > _FAR:
        band = int(apart.argmax())
        return (
            f"the mean of its band {band + 1} is about {sample[band].mean():g}, and the model was trained on "
            f"{info.mean[band]:g} with a standard deviation of {info.std[band]:g}"
        )
    return ""


def check_nodata(nodata: float | None) -> None:
    """Refuse what no comparison finds; NaN and infinity are no data without being named."""
    if nodata is not None and not math.isfinite(nodata):
        raise UserError(f"nodata is a finite number, not {nodata}: NaN and infinity are no data anyway")


def tell_filler(name: str, looked_at: Sequence[Pixels]) -> list[str]:
    """What to say of windows that hold one and the same number all over, as collars and gaps of mosaics do."""
    large = [each for each in looked_at if each.present.size >= _FLAT and each.present.all()]
    flat = Counter(float(each.values.flat[0]) for each in large if np.ptp(each.values) == 0)
    return [
        f"{name} is {value:g} in all bands at {count} of the {len(looked_at)} places looked at, and does not call that "
        f"no data: it is mapped as a picture of something; --nodata {value:g} leaves such pixels out"
        for value, count in flat.items()
    ]


def refusal(name: str, reason: str) -> UserError:
    return UserError(
        f"{name} does not suit the model: {reason}. The map would be wrong: convert the scene (gdal_translate -ot Byte "
        "-scale makes 8-bit pixels), or train on scenes like it; --any-values goes on all the same"
    )


def _eight_bit(info: ModelInfo) -> bool:
    """Older cards do not say the type of pixel; their means tell."""
    if info.dtype:
        return info.dtype == "uint8"
    return bool(info.mean) and 2 < max(info.mean) <= _BRIGHTEST and min(info.mean) >= 0 and max(info.std) <= 128


def _around(info: ModelInfo) -> str:
    return ", ".join(f"{mean:.4g}" for mean in info.mean[:4]) + (", ..." if len(info.mean) > 4 else "")
