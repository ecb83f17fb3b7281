"""Splits that do not leak: whole images, neighbours kept together; a single image is cut into strips with gaps."""

from __future__ import annotations

import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from crispseg.config import shown
from crispseg.data.balance import balanced
from crispseg.data.protocol import SPLITS
from crispseg.errors import UserError, unknown
from crispseg.reading import read_csv

UNUSED = "unused"
VAL_SHARE = 0.25
_COLUMNS = ("name", "split")
GAP = 64  # pixels left out between training and validation strips of one image


class Window(NamedTuple):
    """Part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


def group_names(names: Iterable[str]) -> dict[str, str]:
    """The group of each name: what is left when trailing numbers and numbered words fall away.

    tile7_part3 belongs to tile7, and 2_10_0_512 to 2. Of the possible groupings the coarsest that still has two
    groups is taken, because images with close names usually lie close on the ground.
    """
    parts = {name: re.split(r"[_\-. ]+", name) for name in names}
    tails = {name: _numbered_tail(words) for name, words in parts.items()}
    for kept in range(max(tails.values(), default=0) + 1):
        groups = {name: "_".join(words[: len(words) - max(tails[name] - kept, 0)]) for name, words in parts.items()}
        if len(set(groups.values())) > 1:
            return groups
    return {name: name for name in parts}


def _numbered_tail(words: list[str]) -> int:
    """How many words at the end are numbers, or a short word with a number such as part3."""
    count = 0
    for word in reversed(words):
        if not re.fullmatch(r"[A-Za-z]{0,8}\d+", word):
            break
        count += 1
    return count


def blocked_split(
    sizes: Mapping[str, int],
    share: float = VAL_SHARE,
    seed: int = 0,
    classes: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, str]:
    """train or val for every image, given its pixels: whole groups, about `share` of all pixels in val, and of each
    class where `classes` gives the labelled pixels of every image by class."""
    groups = group_names(sizes)
    pixels: dict[str, int] = {}
    for name, size in sizes.items():
        pixels[groups[name]] = pixels.get(groups[name], 0) + size
    target = share * sum(pixels.values())
    val: set[str] = set()
    taken = 0
    order = sorted(pixels, key=lambda g: _shuffle_key(seed, g))
    for group in order:
        # the first group always goes in; a later one only if that brings val nearer to its share
        if not val or abs(taken + pixels[group] - target) < abs(taken - target):
            val.add(group)
            taken += pixels[group]
        if len(val) == len(pixels) - 1:
            break
    if classes is not None and len(pixels) > 1:
        val = balanced(val, order, _amounts(sizes, classes, groups), share)
    return {name: "val" if groups[name] in val else "train" for name in sizes}


def _amounts(
    sizes: Mapping[str, int], classes: Mapping[str, Sequence[int]], groups: Mapping[str, str]
) -> dict[str, list[float]]:
    """Of each group: pixels of its images, then labelled pixels by class."""
    amounts: dict[str, list[float]] = {}
    for name, group in groups.items():
        own = [sizes[name], *classes[name]]
        amounts[group] = [a + b for a, b in zip(amounts.get(group, [0.0] * len(own)), own, strict=True)]
    return amounts


def _shuffle_key(seed: int, text: str) -> bytes:
    return hashlib.sha256(f"{seed}/{text}".encode()).digest()


def strip_split(
    height: int, width: int, share: float = VAL_SHARE, gap: int = GAP, seed: int = 0
) -> list[tuple[str, Window]]:
    """Train and val parts of one image: strips across its longer side, `gap` pixels between the two kinds."""
    length = max(height, width)
    period = max(round(1 / share), 2)  # one strip in so many is for validation
    repeats = max(1, min(4, length // (period * 512)))
    edges = [length * i // (period * repeats) for i in range(period * repeats + 1)]
    shortest = min(b - a for a, b in itertools.pairwise(edges))
    if shortest < 8:
        raise UserError(f"an image of {width} x {height} px is too small to split; add images, or a split.csv")
    half = min(gap, shortest // 2) // 2
    kinds = []
    for repeat in range(repeats):
        chosen = int.from_bytes(_shuffle_key(seed, f"strip{repeat}")[:4], "big") % period
        kinds += ["val" if i == chosen else "train" for i in range(period)]
    runs: list[tuple[str, int, int]] = []
    for kind, (start, stop) in zip(kinds, itertools.pairwise(edges), strict=True):
        if runs and runs[-1][0] == kind:
            runs[-1] = (kind, runs[-1][1], stop)
        else:
            runs.append((kind, start, stop))
    parts = []
    for kind, start, stop in runs:
        first = start + (half if start else 0)
        last = stop - (half if stop < length else 0)
        upright = height >= width
        parts.append(
            (kind, Window(first, 0, last - first, width) if upright else Window(0, first, height, last - first))
        )
    return parts


def read_kinds(path: Path) -> set[str]:
    """The splits that a split.csv names, whatever images there are."""
    return {_kind(row) for row in read_csv(path, _COLUMNS, "split file")}


def read_split(path: str | Path, names: Iterable[str]) -> dict[str, str]:
    """A split.csv with the columns name and split (train, val, test or unused); every image must be in it."""
    path, known_names = Path(path), set(names)
    rows = read_csv(path, _COLUMNS, "split file")
    split: dict[str, str] = {}
    for number, row in enumerate(rows, 2):
        name = composed(str(row["name"]).strip())
        name = name if name in known_names else Path(name).stem
        if name not in known_names:
            raise UserError(f"{path}, line {number}: there is no image {shown(row['name'])} in images/")
        if split.setdefault(name, _kind(row)) != _kind(row):
            raise UserError(f"{path}, line {number}: {shown(name)} is in {split[name]} already; keep one of the lines")
    return check_split(split, known_names, str(path))


def composed(name: str) -> str:
    """With its accents as one character each: files from a Mac have them as two, so that equal names differ."""
    return unicodedata.normalize("NFC", name)


def _kind(row: Mapping[str, object]) -> str:
    return str(row["split"]).strip().lower()


def check_split(split: Mapping[str, str], names: Iterable[str], where: str) -> dict[str, str]:
    for kind in split.values():
        if kind not in (*SPLITS, UNUSED):
            raise unknown(f"split in {where}", kind, (*SPLITS, UNUSED))
    absent = sorted(set(names) - set(split))
    if absent:
        raise UserError(
            f"{where} does not say which split {len(absent)} images belong to: {', '.join(absent[:5])}"
            f"{', ...' if len(absent) > 5 else ''}; add them, as {UNUSED} if they are not to be used"
        )
    return dict(split)
