"""Which bands of a file a model is shown, and which one only says where there is data."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from crispseg.errors import UserError, nearest
from crispseg.geo.reader import alpha_band, descriptions, marked_alpha
from crispseg.models.base import SegmentationModel

ALPHA = "alpha"
_NAMELESS = ("gray", "grey", "undefined", "palette")  # what GDAL calls bands of which it knows nothing
_COUNTED = re.compile(r"(band|layer|channel)[ _-]?\d+", re.IGNORECASE)  # descriptions that tell no more than a number


@dataclasses.dataclass(frozen=True)
class BandChoice:
    """The bands a model is shown, from 1, with what they are called; `mask` is the alpha band that is not shown."""

    bands: tuple[int, ...]
    names: tuple[str, ...]
    for_model: tuple[str, ...] = ()  # what the model calls them
    mask: int = 0
    warnings: tuple[str, ...] = ()

    def told(self) -> str:
        numbers = ", ".join(map(str, self.bands))
        words = f"band{'s' * (len(self.bands) > 1)} {numbers}"
        if not set(self.names) <= set(_NAMELESS):
            words += f" ({', '.join(self.names)})"
        if self.for_model and tuple(name.lower() for name in self.for_model) != self.names:
            words += f" as the model's {', '.join(self.for_model)}"
        return words + (f", alpha (band {self.mask}) says where there is data" if self.mask else "")


def band_names(dataset: Any, colours: bool) -> list[str]:
    """What each band is called: its description, unless that only counts the bands, else its colour; alpha is not a
    band to choose by default."""
    if colours:
        return ["red", "green", "blue"]
    alpha = alpha_band(dataset)
    described = zip(descriptions(dataset), dataset.colorinterp, strict=True)
    names = [
        (colour.name if not said or (_COUNTED.fullmatch(said) and colour.name not in _NAMELESS) else said).lower()
        for said, colour in described
    ]
    marked = marked_alpha(dataset)
    if marked:  # by its values it may be none
        names[marked - 1] = ALPHA if alpha else "undefined"
    return names


def alpha_of_shades(path: str, dataset: Any) -> list[str]:
    """What to say of a band that is marked as alpha and is none."""
    marked = marked_alpha(dataset)
    if not marked or alpha_band(dataset):
        return []
    return [
        f"band {marked} of {path} is marked as alpha but holds shades, as near infrared does: it is taken for a band "
        "of the image, and hides nothing"
    ]


def choose_bands(path: str, names: list[str], model: SegmentationModel, wanted: Sequence[str] = ()) -> BandChoice:
    """The bands to show the model: those asked for, else those named as the model's, else all.

    A band that the file calls alpha is a mask if the model takes the others and no more; a model that takes as many
    bands as the file has is shown all of them.
    """
    alpha = names.index(ALPHA) + 1 if ALPHA in names else 0
    warnings = []
    if wanted:
        bands = tuple(band_number(path, names, word) for word in wanted)
    else:
        expected = [name.lower() for name in model.info.bands]
        by_name = len(expected) == model.in_channels and all(names.count(name) == 1 for name in expected)
        bands = tuple(k for k in range(1, len(names) + 1) if k != alpha)
        if by_name and expected:
            bands = tuple(names.index(name) + 1 for name in expected)
        elif alpha and len(names) == model.in_channels:
            bands = tuple(range(1, len(names) + 1))
            warnings.append(
                f"{path} calls band {alpha} alpha; the model takes {len(names)} bands, so it is read as one"
            )
    if len(bands) != model.in_channels:
        raise _wrong_number(path, names, bands, model, bool(wanted))
    mask = 0 if alpha in bands else alpha
    return BandChoice(bands, tuple(names[k - 1] for k in bands), tuple(model.info.bands), mask, tuple(warnings))


def band_number(path: str, names: list[str], word: str) -> int:
    if word.isdecimal():
        if not 1 <= int(word) <= len(names):
            raise UserError(f"{path} has bands 1 to {len(names)}, not {word}")
        return int(word)
    if names.count(word.lower()) != 1:
        known = [name for name in names if names.count(name) == 1]
        raise UserError(f"{path} has no single band called {word!r}{nearest(word, known)}")
    return names.index(word.lower()) + 1


def _wrong_number(
    path: str, names: list[str], bands: tuple[int, ...], model: SegmentationModel, asked: bool
) -> UserError:
    takes = f"{model.in_channels} bands" + (f" ({', '.join(model.info.bands)})" if model.info.bands else "")
    given = f"--bands names {len(bands)}" if asked else f"{path} has {len(bands)}"
    given += " and alpha" if not asked and ALPHA in names else ""
    if len(names) >= model.in_channels:
        example = ",".join(str(k) for k in range(1, model.in_channels + 1))
        hint = f"choose with --bands, e.g. --bands {example}"
    else:
        hint = f"it needs another model, or a file with {model.in_channels} bands"
    return UserError(f"model {model.title!r} takes {takes} and {given}; {hint}")
