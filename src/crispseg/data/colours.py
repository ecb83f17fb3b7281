"""Colours for classes that come without: what people expect of a map, and for the rest others that look different."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator

Colour = tuple[int, int, int]

# The names are those of the kinds; in this order, a name with words of two kinds is of the first ("agricultural land").
# Building, land, road, vegetation and water differ in lightness, too, so that those who see fewer hues tell them apart.
EXPECTED: dict[str, Colour] = {
    "background": (202, 198, 204),
    "car": (252, 232, 0),
    "building": (152, 16, 34),
    "agriculture": (166, 92, 14),
    "water": (26, 96, 220),
    "tree": (22, 104, 76),
    "grass": (184, 208, 118),
    "vegetation": (76, 165, 74),
    "road": (124, 124, 132),
    "land": (246, 229, 192),
}
# In the singular.
_WORDS = {
    "background": "background clutter other unknown unlabelled unlabeled unclassified void nothing none non not no",
    "car": "car vehicle truck",
    "building": "building house roof rooftop urban",
    "agriculture": "agriculture agricultural crop cropland farm farmland field",
    "water": "water river lake sea ocean pond pool canal",
    "tree": "tree forest wood woodland canopy high",
    "grass": "grass grassland lawn meadow rangeland low",
    "vegetation": "vegetation veg plant green",
    "road": "road street highway pavement paved asphalt impervious parking",
    "land": "land bareland soil barren bare ground sand dirt desert beach",
    "": "and area body bodies cover data dense dry large lot region small sparse surface swimming unpaved",  # of any
}
_KINDS = {word: kind for kind, words in _WORDS.items() for word in words.split()}

_SPARE: tuple[Colour, ...] = (
    (230, 75, 53),
    (77, 187, 213),
    (0, 160, 135),
    (60, 84, 136),
    (243, 155, 127),
    (132, 145, 180),
    (145, 209, 194),
    (126, 97, 72),
    (176, 156, 133),
    (240, 200, 60),
)
_APART = 20.0  # in CIE Lab; nearer colours look alike where they do not touch
_STEPS = (0, 36, 73, 109, 146, 182, 219, 255)  # of the grid that is left when the spare colours are used up


@functools.cache
def class_colours(names: tuple[str, ...]) -> tuple[Colour, ...]:
    """A colour for each class, no two alike: the expected one where a name has one, a shade of it for a second class
    of the kind, and for others the first of our own that is not near to those already given."""
    given: dict[str, Colour] = {}
    kinds = {name: kind for name in names if (kind := kind_of(name))}
    for name, kind in kinds.items():
        if EXPECTED[kind] not in given.values():
            given[name] = EXPECTED[kind]
    for name, kind in kinds.items():
        if name not in given and (shade := _first_free(_shades(EXPECTED[kind]), given.values())):
            given[name] = shade
    others = _others(tuple(given.values()))
    return tuple(given.get(name) or next(others) for name in names)


def kind_of(name: str) -> str | None:
    """Which kind of EXPECTED a class is, if all words of its name say so: a "water tower" is no water."""
    words = [_singular(word.lower()) for word in re.findall(r"[^\W\d_a-z]?[a-z]+|[^\W\d_a-z]+", name)]
    kinds = {_KINDS[word] for word in words if word in _KINDS}
    known = all(word in _KINDS for word in words)
    return next((kind for kind in EXPECTED if kind in kinds), None) if known else None


def _singular(word: str) -> str:
    return word if word in _KINDS else word.removesuffix("s")


def _shades(colour: Colour) -> tuple[Colour, ...]:
    """A darker and a lighter one."""
    return tuple(_mixed(colour, end, 0.45) for end in (0, 255))


def _mixed(colour: Colour, end: int, share: float) -> Colour:
    red, green, blue = (round((1 - share) * part + share * end) for part in colour)
    return red, green, blue


def _first_free(colours: Iterable[Colour], taken: Iterable[Colour]) -> Colour | None:
    """The first that is not near to one that is taken."""
    taken = tuple(taken)
    return next((colour for colour in colours if nearest(colour, taken) >= _APART), None)


def _others(taken: tuple[Colour, ...]) -> Iterator[Colour]:
    """Our own, and when they are used up that of a grid which is farthest from all before."""
    while spare := _first_free(_SPARE, taken):
        taken = (*taken, spare)
        yield spare
    grid = {colour: nearest(colour, taken) for colour in itertools.product(_STEPS, _STEPS, _STEPS)}
    while True:
        farthest = max(grid, key=grid.__getitem__)
        yield farthest
        grid = {colour: min(far, nearest(colour, (farthest,))) for colour, far in grid.items()}


def nearest(colour: Colour, others: Iterable[Colour]) -> float:
    """How far the nearest of the others is, as the eye sees it: the distance in CIE Lab (CIE76)."""
    place = _lab(colour)
    return min((sum((a - b) ** 2 for a, b in zip(place, _lab(o), strict=True)) ** 0.5 for o in others), default=1e3)


@functools.cache
def _lab(colour: Colour) -> tuple[float, float, float]:
    """CIE Lab of an sRGB colour, for white D65."""
    r, g, b = (_linear(part / 255) for part in colour)
    x = _cube_root((0.4124564 * r + 0.3575761 * g + 0.1804375 * b) / 0.95047)
    y = _cube_root(0.2126729 * r + 0.7151522 * g + 0.0721750 * b)
    z = _cube_root((0.0193339 * r + 0.1191920 * g + 0.9503041 * b) / 1.08883)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else float(((part + 0.055) / 1.055) ** 2.4)


def _cube_root(t: float) -> float:
    return float(t ** (1 / 3)) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116
