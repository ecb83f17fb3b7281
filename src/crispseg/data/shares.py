"""Which classes each split of a folder holds, and what its owner should know about that."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from crispseg.data.folder import Folder, Record
from crispseg.data.protocol import SPLITS, Labels
from crispseg.data.split import group_names
from crispseg.errors import UserError
from crispseg.fingerprint import content_of, stamps

_THREADS = 8
_UNLIKE = 0.3  # from this total variation on, two splits are said to differ
_MOST_TOLD = 5  # faulty masks named in one message


@dataclasses.dataclass(frozen=True)
class SplitShares:
    """Images of each split, and of its labelled pixels each class's share; what is unlucky about it in sentences."""

    images: dict[str, int]
    shares: dict[str, dict[str, float]]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        names = list(next(iter(self.shares.values()), {}))
        width = max(len(name) for name in ("class", *names)) + 2
        lines = [f"  {'class':<{width}}" + "".join(f"{split:>10}" for split in self.images)]
        lines += [
            f"  {name:<{width}}" + "".join(f"{100 * self.shares[split][name]:>8.2f} %" for split in self.images)
            for name in names
        ]
        return "\n".join([*lines, f"  {'images':<{width}}" + "".join(f"{n:>8}  " for n in self.images.values())])


def label_variants(folder: Folder, split: str) -> list[Labels]:
    """The labels of a split that training or scoring will read."""
    protocol, records = folder.protocol, folder.records(split)
    wanted: list[Labels] = [protocol.labels(split)]
    edges = protocol.boundary_labels
    if split != "train" and edges not in wanted and all(edges in record.masks for record in records):
        wanted.append(edges)
    return wanted


def read_all_labels(folder: Folder, splits: Iterable[str], gather: Callable[[Any], list[Any]], mine: slice) -> None:
    """Read every mask of these splits once, so that a fault in one is known before anything is computed.

    Of several processes each reads its part, `mine`, and `gather` brings together what all have found.
    """
    tasks = [(r, v) for split in splits for v in label_variants(folder, split) for r in folder.records(split)]
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda task: _count(folder, *task), tasks[mine]))
    problems = [problem for part in gather([each for each in found if isinstance(each, str)]) for problem in part]
    if problems:
        more = f"\nand {len(problems) - _MOST_TOLD} more" if len(problems) > _MOST_TOLD else ""
        raise UserError("\n".join(problems[:_MOST_TOLD]) + more)
    for counts in gather(folder.counts):
        folder.counts.update(counts)


def _count(folder: Folder, record: Record, labels: Labels) -> list[int] | str:
    try:
        return folder.class_counts(record, labels)
    except UserError as error:
        return str(error)


def split_shares(folder: Folder) -> SplitShares:
    """The classes of all splits that have labels; masks that were not read yet are."""
    names = folder.protocol.classes
    images, shares = {}, {}
    for split in SPLITS:
        records = folder.splits.get(split, ())
        labels = folder.protocol.labels(split)
        if not records or any(labels not in record.masks for record in records):
            continue
        counts = np.sum([folder.class_counts(record, labels) for record in records], axis=0)
        images[split] = len(records)
        shares[split] = {n: float(c) / max(int(counts.sum()), 1) for n, c in zip(names, counts, strict=True)}
    return SplitShares(images, shares, (*_warnings(shares), *_copies(folder)))


def _warnings(shares: dict[str, dict[str, float]]) -> Iterable[str]:
    train, val = shares.get("train"), shares.get("val")
    for split, found in shares.items():
        if not any(found.values()):
            yield f"no pixel of the {split} split is labelled"
    for name in train or ():
        if train and not train[name]:
            yield f"class {name!r} is in no training image: it cannot be learnt"
        elif val and not val[name]:
            yield f"class {name!r} is in no validation image: it has no score there, and 0 if it is predicted"
    if train and val and sum(abs(train[n] - val[n]) for n in train) / 2 > _UNLIKE:
        most = max(val, key=lambda name: abs(val[name] - train[name]))
        yield (
            f"training and validation are unlike: {most!r} is {100 * train[most]:.0f} % of the one and "
            f"{100 * val[most]:.0f} % of the other; write a split.csv, or add images"
        )


def _copies(folder: Folder) -> Iterable[str]:
    """That images which train are scored as well, whatever they are called."""
    sides = {split: [r for r in folder.splits.get(split, ()) if r.window is None] for split in SPLITS}
    sizes = {record.image.stat().st_size for record in sides["train"]}
    likely = {split: [r for r in records if r.image.stat().st_size in sizes] for split, records in sides.items()}
    if not any(likely[split] for split in SPLITS if split != "train"):
        return
    found = stamps(record.image for records in likely.values() for record in records)
    contents = {s: {r.name: content_of(found[os.path.abspath(r.image)]) for r in likely[s]} for s in SPLITS}
    trained = {content: name for name, content in contents["train"].items()}
    for split in SPLITS[1:]:
        same = [(name, trained[content]) for name, content in contents[split].items() if content in trained]
        if same:
            yield (
                f"{len(same)} of {len(sides[split])} {split} images are copies of training images, e.g. {same[0][0]} "
                f"of {same[0][1]}: scores are too good"
            )


def neighbours(folder: Folder) -> str:
    """A hint when names tell that images which validate lie beside images which train; empty when they do not."""
    sides = {r.name: split for split in SPLITS for r in folder.splits.get(split, ()) if r.window is None}
    if len(set(sides.values())) < 2:
        return ""
    groups = group_names(sides)
    parts: dict[str, list[str]] = {}
    for name, group in groups.items():
        parts.setdefault(group, []).append(name)
    for members in parts.values():
        pair = _pair(members, sides)
        if pair:
            torn = sum(bool(_pair(each, sides)) for each in parts.values())
            return (
                f"{torn} of {len(parts)} groups of images with close names are on both sides of the split, e.g. "
                f"{pair[0]} ({sides[pair[0]]}) and {pair[1]} ({sides[pair[1]]}): if they touch on the ground, scores "
                "are too good"
            )
    return _numbered(sides)


def _pair(members: Sequence[str], sides: dict[str, str]) -> tuple[str, str] | None:
    """Two of the members on different sides, one of which trains."""
    train = [name for name in members if sides[name] == "train"]
    other = [name for name in members if sides[name] != "train"]
    return (train[0], other[0]) if train and other else None


def _numbered(sides: dict[str, str]) -> str:
    """Images counted through, img_004 and img_005, that are on different sides."""
    names: dict[tuple[str, int], str] = {}
    for name in sides:
        found = re.fullmatch(r"(.*?)(\d{1,12})", name)
        if found:
            names[found[1], int(found[2])] = name
    pairs = [
        (name, names[stem, number + 1])
        for (stem, number), name in names.items()
        if (stem, number + 1) in names and "train" in (sides[name], sides[names[stem, number + 1]])
    ]
    torn = [pair for pair in pairs if sides[pair[0]] != sides[pair[1]]]
    if not torn:
        return ""
    a, b = torn[0]
    return (
        f"{len(torn)} pairs of images with consecutive numbers are on different sides of the split, e.g. {a} "
        f"({sides[a]}) and {b} ({sides[b]}): if neighbours in number are neighbours on the ground, scores are too good"
    )
