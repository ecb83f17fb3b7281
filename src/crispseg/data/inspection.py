"""A look at a data folder before anything is trained on it: sizes, classes, splits, statistics, faults."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.data.classes import IGNORE, ClassTable
from crispseg.data.drawing import Thumbnails, draw_contact_sheet, draw_thumbnails
from crispseg.data.folder import Pairs, find_pairs, open_folder
from crispseg.data.gaps import find_gaps
from crispseg.data.images import Array, read_image, read_mask, read_nodata
from crispseg.data.labels import Mask, encode, histogram, is_lossy, read_table_mask
from crispseg.data.manifest import Statistics, band_sums, statistics_of
from crispseg.data.shares import SplitShares, neighbours, split_shares
from crispseg.data.split import UNUSED, composed, read_split
from crispseg.data.tables import Classes, find_table, has_table
from crispseg.errors import UserError
from crispseg.reading import list_folder

Unlearnt = NDArray[np.bool_] | None  # (H, W)
_MOST_LISTED = 20  # faults of one kind in the report; all of them are in `problems`


@dataclasses.dataclass
class Report:
    """What `inspect` found. `str(report)` is a table for people, `to_dict()` for machines.

    `problems` have to be mended before training, `hints` are worth a thought.
    """

    root: Path
    images: int = 0
    sizes: Counter[str] = dataclasses.field(default_factory=Counter)  # "width x height" -> images
    kinds: Counter[str] = dataclasses.field(default_factory=Counter)  # "3 bands of uint8" -> images
    pixels: int = 0
    table: ClassTable | None = None
    counts: dict[str, list[int]] = dataclasses.field(default_factory=dict)  # labelled pixels by image and class
    ignored_pixels: int = 0
    statistics: Statistics | None = None
    split: SplitShares | None = None
    problems: list[str] = dataclasses.field(default_factory=list)
    hints: list[str] = dataclasses.field(default_factory=list)
    thumbnails: list[Thumbnails] = dataclasses.field(default_factory=list, repr=False)

    @property
    def shares(self) -> dict[str, float]:
        """Each class's part of the labelled pixels."""
        names = self.table.names if self.table else ()
        totals = [sum(each) for each in zip(*self.counts.values(), strict=True)] or [0] * len(names)
        return {name: pixels / (sum(totals) or 1) for name, pixels in zip(names, totals, strict=True)}

    def to_dict(self) -> dict[str, Any]:
        return {
            "root": str(self.root),
            "images": self.images,
            "pixels": self.pixels,
            "sizes": dict(self.sizes),
            "kinds": dict(self.kinds),
            "class_shares": self.shares,
            "ignored_pixels": self.ignored_pixels,
            "mean": list(self.statistics.mean) if self.statistics else [],
            "std": list(self.statistics.std) if self.statistics else [],
            "split": self.split.to_dict() if self.split else None,
            "problems": self.problems,
            "hints": self.hints,
        }

    def __str__(self) -> str:
        lines = [f"{self.root}: {self.images} images, {self.pixels / 1e6:.1f} million pixels"]
        lines += [f"  {kind}: {count} images" for kind, count in self.kinds.most_common()]
        lines += [f"  {size} px: {count} images" for size, count in self.sizes.most_common(8)]
        if len(self.sizes) > 8:
            lines.append(f"  and {len(self.sizes) - 8} other sizes")
        if self.statistics:
            lines += ["", f"  {'band':<6}{'mean':>12}{'std':>12}"]
            for band, (mean, std) in enumerate(zip(self.statistics.mean, self.statistics.std, strict=True)):
                lines.append(f"  {band:<6}{mean:>12.3f}{std:>12.3f}")
        if self.table:
            width = max(len(name) for name in self.table.names)
            lines += ["", f"  {'id':<5}{'class':<{width + 2}}share of labelled pixels"]
            lines += [f"  {i:<5}{n:<{width + 2}}{100 * s:6.2f} %" for i, (n, s) in enumerate(self.shares.items())]
            if self.pixels:
                lines.append(f"  ignored: {100 * self.ignored_pixels / self.pixels:.2f} % of all pixels")
        if self.split:
            lines += ["", str(self.split)]
        for title, texts in (("hints", self.hints), ("problems", self.problems)):
            if texts or title == "problems":
                lines += ["", f"{title}: {len(texts)}"] + [f"  - {text}" for text in texts[:_MOST_LISTED]]
                lines += [f"  and {len(texts) - _MOST_LISTED} more"] if len(texts) > _MOST_LISTED else []
        return "\n".join(lines)

    def contact_sheet(self, path: str | Path) -> Path:
        """Draw small pictures of images, and beside each its mask, into a png."""
        if not self.thumbnails:
            raise UserError(f"no readable image in {self.root} to draw")
        return draw_contact_sheet(self.thumbnails, path)


def inspect(root: str | Path, classes: Classes | None = None, thumbnails: int = 24) -> Report:
    """Read every file of a data folder once. Faults are collected, not raised."""
    root = Path(root)
    pairs = find_pairs(root)
    report = Report(root)
    masks = next(iter(pairs.masks.values()))
    lossy = [path.name for path in masks.values() if is_lossy(path.name)]
    try:
        report.table = find_table(root, list(masks.values()), classes)
    except UserError as error:
        if not lossy or has_table(root, classes):  # what is wrong without a table follows from jpg, told of below
            report.problems.append(str(error))
    report.problems += [f"mask {masks[name].name} has no image" for name in masks if name not in pairs.images]
    _look_at_images(report, pairs, masks, thumbnails)
    labelled = {name for variant in pairs.masks.values() for name in variant}
    _look_at_bare(report, [path for name, path in pairs.images.items() if name not in labelled], list(pairs.images))
    if lossy:
        report.problems.append(f"{len(lossy)} masks are jpg, which blurs ids and colours, e.g. {lossy[0]}; use png")
    if len(report.kinds) > 1:
        report.problems.append(f"images differ in bands or type: {', '.join(report.kinds)}")
    if report.table is not None and not has_table(root, classes):
        report.hints.append(_name_the_classes(root, report.table))
    deeper = [path.name for path in list_folder(root / "images") if path.is_dir() and not path.name.startswith(".")]
    if deeper:
        report.hints.append(f"images/ holds folders, which are not looked into: {', '.join(deeper[:5])}")
    if not report.problems:
        _look_at_split(report, classes)
    return report


def _look_at_images(report: Report, pairs: Pairs, masks: dict[str, Path], count: int) -> None:
    shown = set(_spread(list(pairs.images), count))
    totals: dict[int, Array] = {}
    for name, path in pairs.images.items():
        try:
            image = read_image(path)
        except UserError as error:
            report.problems.append(str(error))
            continue
        unlearnt = _count_image(report, path, image, totals)
        mask = _count_mask(report, path, image, masks.get(name), unlearnt)
        if name in shown:
            palette = report.table.palette if report.table else ()
            report.thumbnails.append((name, *draw_thumbnails(image, mask, palette)))
    if len(totals) == 1:
        try:
            report.statistics = statistics_of(next(iter(totals.values())))
        except UserError as error:
            report.problems.append(str(error))


def _count_image(report: Report, path: Path, image: Array, totals: dict[int, Array]) -> Unlearnt:
    height, width, bands = image.shape
    report.images += 1
    report.pixels += height * width
    report.sizes[f"{width} x {height}"] += 1
    report.kinds[f"{bands} band{'' if bands == 1 else 's'} of {image.dtype}"] += 1
    gapped = find_gaps(image, read_nodata(path))
    totals[bands] = totals.get(bands, np.zeros((bands, 3))) + np.array(band_sums(gapped.image, gapped.measured))
    infinite = int(np.isinf(image).any(axis=-1).sum()) if image.dtype.kind == "f" else 0
    if infinite:
        row, column = np.argwhere(np.isinf(image).any(axis=-1))[0]
        report.problems.append(
            f"{path.name} has {infinite} pixels of infinity, the first at row {row}, column {column}; they count as no "
            "data: write NaN there if that is meant, or look for the division by zero"
        )
    return gapped.unlearnt


def _look_at_bare(report: Report, bare: list[Path], names: list[str]) -> None:
    """Images without masks: nothing is learnt from those that split.csv has for test or unused, as LoveDA's Test."""
    split: dict[str, str] = {}
    with contextlib.suppress(UserError):  # told of when the split is looked at
        split = read_split(report.root / "split.csv", names)
    needed = [path for path in bare if split.get(composed(path.stem)) not in ("test", UNUSED)]
    report.problems += [f"image {path.name} has no mask" for path in needed]
    if len(needed) < len(bare):
        report.hints.append(f"{len(bare) - len(needed)} images for test or unused have no mask: they cannot be scored")


def _count_mask(report: Report, path: Path, image: Array, mask_path: Path | None, unlearnt: Unlearnt) -> Mask | None:
    if mask_path is None:
        return None
    try:
        array = read_table_mask(mask_path, report.table) if report.table else read_mask(mask_path)
        if array.shape[:2] != image.shape[:2]:
            report.problems.append(
                f"{mask_path.name} is {array.shape[1]} x {array.shape[0]} px, but its image is "
                f"{image.shape[1]} x {image.shape[0]} px"
            )
            return None
        if report.table is None:
            return None
        mask, _ = encode(array, report.table, mask_path.name)
    except UserError as error:
        if not is_lossy(mask_path.name):  # one sentence about all jpg masks is enough
            report.problems.append(str(error))
        return None
    report.counts[composed(path.stem)] = histogram(mask, len(report.table.names))
    report.ignored_pixels += int(((mask == IGNORE) | (False if unlearnt is None else unlearnt)).sum())
    return mask


def _look_at_split(report: Report, classes: Classes | None) -> None:
    """The split that training will use."""
    try:
        folder = open_folder(report.root, classes=classes, counts=report.counts)
        report.split = split_shares(folder)
    except UserError as error:
        report.problems.append(str(error))
        return
    report.hints += report.split.warnings
    hint = neighbours(folder) if folder.protocol.name.startswith(f"{folder.protocol.dataset}/own") else ""
    if hint:
        report.hints.append(hint)


def _name_the_classes(root: Path, table: ClassTable) -> str:
    rows = "\n".join(f"{name},{value}" for name, value in zip(table.names, table.file_values, strict=True))
    from_one = "the ids in the masks begin at 1, and 0 is in none of them; " if table.file_values[0] == 1 else ""
    return f"{from_one}there is no class table; to name the classes write {root / 'classes.csv'}:\nname,id\n{rows}"


def _spread(names: list[str], count: int) -> list[str]:
    """At most `count` of the names, evenly from first to last."""
    step = max(len(names) / max(count, 1), 1.0)
    return [names[int(i * step)] for i in range(min(count, len(names)))]
