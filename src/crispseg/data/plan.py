"""What is to be prepared: which file is which tile's image and labels, and what was missing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from crispseg.data import known
from crispseg.data.classes import IGNORE, ClassTable
from crispseg.data.sources import Entry

Wanted = Literal["both", "full", "eroded"]


@dataclasses.dataclass
class Item:
    """One image to be written, with its label files by variant."""

    name: str
    image: Entry | None = None
    masks: dict[str, Entry] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class DatasetPlan:
    dataset: str
    layout: str
    table: ClassTable  # the meaning of the label files in this layout
    items: list[Item]
    bands: tuple[str, ...]
    size: int | None = None  # expected side of a tile, for a remark only
    problems: list[str] = dataclasses.field(default_factory=list)
    missing: list[str] = dataclasses.field(default_factory=list)  # problems that --allow-missing lets pass
    remarks: list[str] = dataclasses.field(default_factory=list)
    black_is_padding: bool = False


def collect(items: Iterable[tuple[str, str, Entry]]) -> dict[str, Item]:
    """Items by name from (name, "image" or label variant, entry); of two files for one thing the better stays."""
    found: dict[str, Item] = {}
    for name, role, entry in items:
        item = found.setdefault(name, Item(name))
        if role == "image":
            item.image = _better(item.image, entry)
        else:
            item.masks[role] = _better(item.masks.get(role), entry)
    return found


def _better(old: Entry | None, new: Entry) -> Entry:
    """The complete archives repeat what the ones for the contest's participants hold; prefer the complete."""
    return new if old is None or "participants" in str(old.path).lower() else old


def pick_tiles(
    found: dict[str, Item], tiles: Sequence[str], wanted: Wanted, archives: dict[str, str]
) -> tuple[list[Item], list[str]]:
    """The items of the expected tiles, and a sentence for everything missing. `archives` says where roles come from."""
    variants = ("full", "eroded") if wanted == "both" else (wanted,)
    items, missing = [], dict[str, list[str]]()
    for tile in tiles:
        item = found.get(tile, Item(tile))
        item.masks = {variant: item.masks[variant] for variant in variants if variant in item.masks}
        items.append(item)
        if item.image is None:
            missing.setdefault("image", []).append(tile)
        for variant in variants:
            if variant not in item.masks:
                missing.setdefault(variant, []).append(tile)
    return items, [_missing(role, gone, len(tiles), archives) for role, gone in missing.items()]


def _missing(role: str, gone: list[str], expected: int, archives: dict[str, str]) -> str:
    what = "images" if role == "image" else f"{role} labels"
    if len(gone) == expected:
        narrower = "" if role == "image" else f" (or prepare without them: --labels {_OTHER[role]})"
        return f"no {what} at all; they are in {archives[role]}{narrower}"
    return f"{what} missing for {len(gone)} of {expected} tiles: {', '.join(gone)}; they are in {archives[role]}"


_OTHER = {"full": "eroded", "eroded": "full"}


def mmseg_plan(
    dataset: str,
    entries: Sequence[Entry],
    bands: tuple[str, ...],
    tile_name: re.Pattern[str] | None = None,
    tiles: Sequence[str] = (),
) -> DatasetPlan:
    """mmsegmentation's layout: img_dir/<split>/x.png beside ann_dir/<split>/x.png; 0 is ignored, classes from 1."""
    table = known.TABLES[dataset]
    table = ClassTable(table.names, values=tuple(range(1, len(table.names) + 1)), ignored_values=(0, IGNORE))
    variant = "full" if dataset == "loveda" else "eroded"  # its converter reads ISPRS' eroded labels
    triples = []
    for entry in entries:
        kind = next((part for part in entry.folders if part in ("img_dir", "ann_dir")), None)
        if kind and entry.path.suffix.lower() == ".png":
            name = entry.path.stem if tile_name else f"{entry.folder}_{entry.path.stem}"
            triples.append((name, "image" if kind == "img_dir" else variant, entry))
    items = collect(triples)
    plan = DatasetPlan(dataset, "mmsegmentation", table, sorted(items.values(), key=lambda item: item.name), bands)
    plan.missing = unpaired(plan.items, unlabelled_prefix="test_")
    if tile_name:
        plan.problems += [f"{name} is not named after a tile" for name in items if not tile_name.match(name)]
    gone = [tile for tile in tiles if not any(name.startswith(f"{tile}_") for name in items)]
    plan.missing += [f"no crops of {len(gone)} of {len(tiles)} tiles: {', '.join(gone)}"] if gone else []
    return plan


def geoseg_patches_plan(
    dataset: str, entries: Sequence[Entry], tile_name: re.Pattern[str], bands: tuple[str, ...]
) -> DatasetPlan:
    """GeoSeg's patches: train/images_1024 and train/masks_1024 (full labels), the same for test (eroded), 6 ignored."""
    count = len(known.TABLES[dataset].names)
    table = ClassTable(known.TABLES[dataset].names, ignored_values=(count, IGNORE))
    triples = []
    for entry in entries:
        match = tile_name.match(entry.path.stem)
        kind = re.fullmatch(r"(images|masks)_\d+", entry.folder)
        if match and kind:
            variant = "full" if "train" in entry.folders else "eroded"
            name = f"{_joined(match)}_patch{entry.path.stem[match.end() :]}"
            triples.append((name, "image" if kind[1] == "images" else variant, entry))
    items = collect(triples)
    plan = DatasetPlan(dataset, "geoseg patches", table, sorted(items.values(), key=lambda item: item.name), bands)
    plan.missing = unpaired(plan.items)
    plan.black_is_padding = True
    plan.remarks = [
        "GeoSeg pads its patches at the top and left, and some versions label the padding as class 0; rows and "
        "columns of black padding are set to ignored, mirrored padding cannot be told: prefer the original tiles"
    ]
    return plan


def _joined(match: re.Match[str]) -> str:
    return "_".join(group for group in match.groups() if group)


def unpaired(items: Sequence[Item], unlabelled_prefix: str | None = None) -> list[str]:
    """Sentences for images without labels and labels without images."""
    alone = [i.name for i in items if not i.masks and not (unlabelled_prefix and i.name.startswith(unlabelled_prefix))]
    stray = [item.name for item in items if item.image is None]
    return [
        f"{len(names)} {what}: {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}"
        for what, names in (("images have no label", alone), ("labels have no image", stray))
        if names
    ]
