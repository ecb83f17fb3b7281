"""Several data sets as one training set, in the classes of the first.

A class of another set may stand for one class of the first, or for several of them: `background` of a set of buildings
is anything but a building. Such a pixel gets an id after the classes', and the loss asks only that one of them be
predicted (see `losses.grouped_cross_entropy`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from crispseg.data.classes import IGNORE
from crispseg.data.dataset import Key, Sample, SegmentationDataset
from crispseg.data.folder import Folder
from crispseg.data.labels import Mask
from crispseg.data.manifest import Statistics
from crispseg.errors import UserError, unknown

Groups = tuple[tuple[int, ...], ...]  # ids of the classes that a label may stand for


@dataclasses.dataclass(frozen=True)
class Companion:
    """Another set that trains along: its windows, its share beside the first set's 1, and its labels' meaning."""

    data: SegmentationDataset
    share: float
    lookup: Mask  # (256,) the id in the first set's classes, or after them


def understand(
    folder: Folder, meaning: Mapping[str, object], classes: Sequence[str], groups: Groups
) -> tuple[Mask, Groups]:
    """The lookup of a set's ids, and all groups so far. `meaning` has a class, a list of them, or null (ignored) for
    each class of the set; those it does not name mean the class of their own name."""
    own = folder.protocol.classes
    for name in meaning:
        if name not in own:
            raise unknown(f"class of {folder.root}", name, own)
    lookup = np.full(256, IGNORE, np.uint8)
    for index, name in enumerate(own):
        ids = _ids(meaning.get(name, name), name, folder, classes)
        if len(ids) == 1:
            lookup[index] = ids[0]
        elif ids:
            groups = groups if ids in groups else (*groups, ids)
            lookup[index] = len(classes) + groups.index(ids)
    if (lookup == IGNORE).all():
        raise UserError(f"nothing would be learnt from {folder.root}: its `meaning` ignores all of its classes")
    return lookup, groups


def _ids(means: object, name: str, folder: Folder, classes: Sequence[str]) -> tuple[int, ...]:
    if means is None:
        return ()
    words = [means] if isinstance(means, str) else means
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise UserError(f"what {name} of {folder.root} means must be a class, a list of classes or null, not {means!r}")
    for word in words:
        if word not in classes:
            raise UserError(
                f"{name} of {folder.root} is to mean {word!r}, but the classes are {', '.join(classes)}; say what it "
                "means with `meaning`, or null to ignore it"
            )
    return tuple(sorted({list(classes).index(word) for word in words}))


class JoinedSet(SegmentationDataset):
    """The windows of a first set with those of its companions among them, spread by their shares."""

    def __init__(self, first: SegmentationDataset, companions: Sequence[Companion]) -> None:
        for own, value in vars(first).items():  # it is the first set, and more
            setattr(self, own, value)
        self.first, self.companions = first, tuple(companions)
        self.counts = [max(round(len(first) * companion.share), 1) for companion in companions]

    def __len__(self) -> int:
        return len(self.first) + sum(self.counts)

    def compact(self, key: Key) -> Sample:
        """A sample of the first set, or of the companion whose stretch of the epoch the index lies in."""
        epoch, index = key if isinstance(key, tuple) else (0, key)
        if index < len(self.first):
            return self.first.compact((epoch, index))
        index -= len(self.first)
        for companion, count in zip(self.companions, self.counts, strict=True):
            if index < count:
                turn, place = divmod(epoch * count + index, len(companion.data))
                image, mask, name = companion.data.compact((turn, place))
                return image, torch.from_numpy(companion.lookup[mask.numpy()]), name
            index -= count
        raise IndexError(key)

    def show_means(self, mean: Sequence[float]) -> None:
        for one in (self.first, *(companion.data for companion in self.companions)):
            one.show_means(mean)

    def preload(self) -> None:
        for one in (self.first, *(companion.data for companion in self.companions)):
            one.preload()


def joined_statistics(parts: Sequence[tuple[Statistics, float]]) -> Statistics:
    """Mean and standard deviation over several sets, each weighing its share."""
    shares = np.array([share for _, share in parts])[:, None] / sum(share for _, share in parts)
    means, stds = (np.array([getattr(s, kind) for s, _ in parts]) for kind in ("mean", "std"))
    mean = (shares * means).sum(0)
    std = np.sqrt((shares * (stds**2 + (means - mean) ** 2)).sum(0))  # never below the smallest of theirs
    return Statistics(tuple(mean.tolist()), tuple(std.tolist()))
