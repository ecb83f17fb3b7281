"""Protocols: the named, hashed answer to "a score on what, exactly?".

A protocol fixes the tiles of each split, the classes predicted and the classes averaged, the label variant
(full, or eroded by ISPRS along the boundaries), the training crop and the windows at test. Every score the
house prints carries `describe()`, which holds the name and the hash.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from crispseg.data import known
from crispseg.data.classes import ClassTable, Colour
from crispseg.errors import unknown

Labels = Literal["full", "eroded"]
SPLITS = ("train", "val", "test")


@dataclasses.dataclass(frozen=True)
class Protocol:
    """What a score was made on. Tiles are names of images, or what stands before an underscore in them."""

    name: str
    dataset: str
    classes: tuple[str, ...]  # what a model predicts, in id order
    palette: tuple[Colour, ...]
    scored: tuple[str, ...]  # the classes the means run over
    ignored: tuple[str, ...] = ()  # classes of the data set that become 255, in training and scoring
    train: tuple[str, ...] = ()
    val: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    train_labels: Labels = "full"
    eval_labels: Labels = "full"
    boundary_labels: Labels = "full"  # eroded labels have no boundaries to score
    crop: int = 512
    tile: int = 512  # side of the window at test; 0 for the whole image
    overlap: int = 256
    resolution: float | None = None  # metres per pixel
    notes: str = ""

    @property
    def hash(self) -> str:
        """Ten hex digits over everything above but the notes."""
        facts = {k: v for k, v in dataclasses.asdict(self).items() if k != "notes"}
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def scored_ids(self) -> tuple[int, ...]:
        return tuple(self.classes.index(name) for name in self.scored)

    @property
    def scored_split(self) -> str:
        """The split that final scores are made on."""
        return "test" if self.test else "val"

    def tiles(self, split: str) -> tuple[str, ...]:
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        tiles: tuple[str, ...] = getattr(self, split)
        return tiles

    def labels(self, split: str) -> Labels:
        """The variant a split is read with: what is scored has its own, what only selects is as in training."""
        return self.eval_labels if split == self.scored_split else self.train_labels

    def holds(self, split: str, name: str) -> bool:
        """Whether an image of this name belongs to a split: it is one of its tiles, or a part of one."""
        return any(name == tile or name.startswith(f"{tile}_") for tile in self.tiles(split))

    def missing(self, split: str, names: Iterable[str]) -> list[str]:
        """The tiles of a split that none of these images is, or is a part of."""
        names = list(names)
        return [t for t in self.tiles(split) if not any(n == t or n.startswith(f"{t}_") for n in names)]

    def describe(self, split: str | None = None, tta: str = "none") -> str:
        """One line to stand beside every score."""
        split = split or self.scored_split
        tiles = self.tiles(split)
        what = "official folder" if tiles == (split,) else f"{len(tiles)} tile{'' if len(tiles) == 1 else 's'}"
        left_out = [name for name in self.classes if name not in self.scored]
        classes = f"{len(self.scored)} classes averaged"
        if left_out:
            classes += f" ({', '.join(left_out)} kept but not averaged)"
        if self.ignored:
            classes += f" ({', '.join(self.ignored)} ignored)"
        window = f"tile {self.tile} overlap {self.overlap}" if self.tile else "whole images"
        chosen = "; val = test" if split == "test" and self.val == self.test else ""
        return (
            f"{self.name} #{self.hash}: {split} ({what}{chosen}), {classes}, "
            f"{self.labels(split)} labels, global confusion, {window}, TTA {tta}"
        )


def get_protocol(name: str, fold: int | None = None) -> Protocol:
    """The protocol of this name; with `fold`, one of the folds of a data set that is cross-validated."""
    if fold is not None:
        name = f"{name}/fold{fold}"
    if name not in _PROTOCOLS:
        raise unknown("protocol", name, _PROTOCOLS)
    return _PROTOCOLS[name]


def list_protocols(dataset: str | None = None) -> list[str]:
    return [name for name, protocol in _PROTOCOLS.items() if dataset in (None, protocol.dataset)]


def own_protocol(
    dataset: str,
    table: ClassTable,
    splits: Mapping[str, Sequence[str]],
    resolution: float | None = None,
) -> Protocol:
    """The protocol of somebody's own folder: all its classes scored, its images listed by name."""
    return Protocol(
        name=f"{dataset}/own{len(table.names)}",
        dataset=dataset,
        classes=table.names,
        palette=table.palette,
        scored=table.names,
        train=tuple(splits.get("train", ())),
        val=tuple(splits.get("val", ())),
        test=tuple(splits.get("test", ())),
        resolution=resolution,
    )


def protocols_table() -> str:
    """All named protocols as the Markdown table of docs/how-to/data.md."""
    lines = [
        "| protocol | hash | train / val / test tiles | averaged | ignored | labels train / test | crop "
        "| tile, overlap |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for p in _PROTOCOLS.values():
        averaged = f"{len(p.scored)} of {len(p.classes)}"
        counts = f"{len(p.train)} / {len(p.val)} / {len(p.test)}"
        window = f"{p.tile}, {p.overlap}" if p.tile else "whole image"
        lines.append(
            f"| `{p.name}` | `{p.hash}` | {counts} | {averaged} | {', '.join(p.ignored) or 'none'} "
            f"| {p.train_labels} / {p.eval_labels} | {p.crop} | {window} |"
        )
    return "\n".join(lines)


def _five_classes(dataset: str) -> dict[str, object]:
    """The paper's classes: clutter is ignored in training and scoring."""
    return {
        "dataset": dataset,
        "classes": known.ISPRS.names[:5],
        "palette": known.ISPRS.colours[:5],
        "scored": known.ISPRS.names[:5],
        "ignored": ("clutter",),
    }


def _six_classes(dataset: str, averaged: int) -> dict[str, object]:
    names = known.ISPRS.names
    return {"dataset": dataset, "classes": names, "palette": known.ISPRS.colours, "scored": names[:averaged]}


_GEOSEG_LABELS = {"train_labels": "full", "eval_labels": "eroded"}
_MMSEG = {"train_labels": "eroded", "eval_labels": "eroded", "tile": 512, "overlap": 0}


def _isprs(dataset: str, resolution: float) -> list[Protocol]:
    train, test, held_out = {
        "potsdam": (known.POTSDAM_TRAIN, known.POTSDAM_TEST, "2_10"),
        "vaihingen": (known.VAIHINGEN_TRAIN, known.VAIHINGEN_TEST, "area30"),
    }[dataset]
    geoseg = {
        "train": tuple(t for t in train if t not in (held_out, known.POTSDAM_FAULTY)),
        "val": (held_out,),
        "test": test,
    }
    kinds: list[dict[str, object]] = [
        {
            **_five_classes(dataset),
            **geoseg,
            **_GEOSEG_LABELS,
            "name": f"{dataset}/paper5",
            "notes": "The paper names neither tiles nor label variant; these are what most of its rivals use. Its "
            "words (a unified MMSegmentation protocol) fit mmseg5 better.",
        },
        {
            **_six_classes(dataset, averaged=5),
            **geoseg,
            **_GEOSEG_LABELS,
            "name": f"{dataset}/geoseg6",
            "crop": 768 if dataset == "potsdam" else 512,
            "tile": 1024,
            "overlap": 0,
            "notes": "GeoSeg selects on its test folder; here one training tile is held out for that.",
        },
        {
            **_six_classes(dataset, averaged=6),
            **_MMSEG,
            "name": f"{dataset}/mmseg6",
            "train": train,
            "val": test,
            "test": test,
            "notes": "As in mmsegmentation, models are selected on the tiles they are scored on.",
        },
        {
            **_five_classes(dataset),
            **_MMSEG,
            "name": f"{dataset}/mmseg5",
            "train": train,
            "val": test,
            "test": test,
            "notes": "mmseg6 without clutter: what the paper's words say, a unified MMSegmentation protocol of five "
            "classes with clutter ignored. paper5 differs: one training tile is held out to select on (and the faulty "
            "7_10 of Potsdam left out), training labels are full, and test windows overlap by half.",
        },
    ]
    return [Protocol(**kind, resolution=resolution) for kind in kinds]  # type: ignore[arg-type]


def _loveda() -> Protocol:
    return Protocol(
        name="loveda/val7",
        dataset="loveda",
        classes=known.LOVEDA.names,
        palette=known.LOVEDA.colours,
        scored=known.LOVEDA.names,
        train=("train",),
        val=("val",),
        tile=1024,
        overlap=0,
        resolution=0.3,
        notes="Trained on Train, scored on Val; the test labels are hidden.",
    )


def _dubai() -> Protocol:
    return Protocol(
        name="dubai/own5",
        dataset="dubai",
        classes=known.DUBAI.names,
        palette=known.DUBAI.colours,
        scored=known.DUBAI.names,
        train=known.DUBAI_TRAIN,
        val=known.DUBAI_VAL,
    )


def _fragment(fold: int) -> Protocol:
    """Leave one tile out."""
    tiles = known.FRAGMENT_TILES
    return Protocol(
        **_five_classes("vaihingen_fragment"),  # type: ignore[arg-type]
        name=f"vaihingen_fragment/fold{fold}",
        train=tiles[:fold] + tiles[fold + 1 :],
        val=(tiles[fold],),
        resolution=0.09,
    )


_PROTOCOLS = {
    p.name: p
    for p in [
        *_isprs("potsdam", 0.05),
        *_isprs("vaihingen", 0.09),
        _loveda(),
        _dubai(),
        *map(_fragment, range(3)),
    ]
}
