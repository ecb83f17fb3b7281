"""A look at a data folder before anything is trained on it: sizes, classes, statistics, faults, a contact sheet."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from crispseg.data.classes import IGNORE, ClassTable, Colour
from crispseg.data.folder import find_pairs
from crispseg.data.images import Array, read_image, read_mask
from crispseg.data.labels import Mask, encode, histogram
from crispseg.data.manifest import Statistics, band_sums, statistics_of
from crispseg.data.tables import Classes, find_table
from crispseg.errors import UserError
from crispseg.files import replacing

THUMBNAIL = 160  # side of a picture on the contact sheet, px


@dataclasses.dataclass
class Report:
    """What `inspect` found. `str(report)` is a table for people, `to_dict()` for machines."""

    root: Path
    images: int = 0
    sizes: Counter[str] = dataclasses.field(default_factory=Counter)  # "width x height" -> images
    kinds: Counter[str] = dataclasses.field(default_factory=Counter)  # "3 bands of uint8" -> images
    pixels: int = 0
    table: ClassTable | None = None
    class_pixels: list[int] = dataclasses.field(default_factory=list)
    ignored_pixels: int = 0
    statistics: Statistics | None = None
    problems: list[str] = dataclasses.field(default_factory=list)
    thumbnails: list[tuple[str, Array, Array]] = dataclasses.field(default_factory=list, repr=False)

    @property
    def shares(self) -> dict[str, float]:
        """Each class's part of the labelled pixels."""
        total = sum(self.class_pixels) or 1
        names = self.table.names if self.table else ()
        return {name: pixels / total for name, pixels in zip(names, self.class_pixels, strict=True)}

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
            "problems": self.problems,
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
        lines += ["", f"problems: {len(self.problems)}"] + [f"  - {problem}" for problem in self.problems]
        return "\n".join(lines)

    def contact_sheet(self, path: str | Path) -> Path:
        """Draw small pictures of images, and beside each its mask, into a png."""
        from PIL import Image, ImageDraw

        if not self.thumbnails:
            raise UserError(f"no readable image in {self.root} to draw")
        across = min(3, len(self.thumbnails))
        down = -(-len(self.thumbnails) // across)
        cell = (2 * THUMBNAIL + 12, THUMBNAIL + 20)
        sheet = Image.new("RGB", (across * cell[0], down * cell[1]), "white")
        draw = ImageDraw.Draw(sheet)
        for number, (name, image, mask) in enumerate(self.thumbnails):
            x, y = number % across * cell[0], number // across * cell[1]
            sheet.paste(Image.fromarray(image), (x, y + 14))
            sheet.paste(Image.fromarray(mask), (x + THUMBNAIL + 4, y + 14))
            draw.text((x, y), name[:48], fill="black")
        with replacing(path) as aside:
            sheet.save(aside, "png")
        return Path(path)


def inspect(root: str | Path, classes: Classes | None = None, thumbnails: int = 24) -> Report:
    """Read every file of a data folder once. Faults are collected, not raised."""
    root = Path(root)
    pairs = find_pairs(root)
    report = Report(root)
    masks = next(iter(pairs.masks.values()))
    try:
        report.table = find_table(root, list(masks.values()), classes)
        report.class_pixels = [0] * len(report.table.names)
    except UserError as error:
        report.problems.append(str(error))
    report.problems += [f"mask {masks[name].name} has no image" for name in masks if name not in pairs.images]
    shown = set(_spread(list(pairs.images), thumbnails))
    totals: dict[int, Array] = {}
    for name, path in pairs.images.items():
        try:
            image = read_image(path)
        except UserError as error:
            report.problems.append(str(error))
            continue
        _count_image(report, image, totals)
        mask = _count_mask(report, path, image, masks.get(name))
        if name in shown:
            report.thumbnails.append((name, *_thumbnails(image, mask, report.table)))
    if len(totals) == 1:
        try:
            report.statistics = statistics_of(next(iter(totals.values())))
        except UserError as error:
            report.problems.append(str(error))
    if len(report.kinds) > 1:
        report.problems.append(f"images differ in bands or type: {', '.join(report.kinds)}")
    return report


def _count_image(report: Report, image: Array, totals: dict[int, Array]) -> None:
    height, width, bands = image.shape
    report.images += 1
    report.pixels += height * width
    report.sizes[f"{width} x {height}"] += 1
    report.kinds[f"{bands} band{'' if bands == 1 else 's'} of {image.dtype}"] += 1
    totals[bands] = totals.get(bands, np.zeros((bands, 3))) + np.array(band_sums(image))


def _count_mask(report: Report, path: Path, image: Array, mask_path: Path | None) -> Mask | None:
    if mask_path is None:
        report.problems.append(f"image {path.name} has no mask")
        return None
    try:
        array = read_mask(mask_path, colours=report.table is not None and report.table.by_colour)
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
        report.problems.append(str(error))
        return None
    counts = histogram(mask, len(report.class_pixels))
    report.class_pixels = [a + b for a, b in zip(report.class_pixels, counts, strict=True)]
    report.ignored_pixels += int((mask == IGNORE).sum())
    return mask


def _spread(names: list[str], count: int) -> list[str]:
    """At most `count` of the names, evenly from first to last."""
    step = max(len(names) / max(count, 1), 1.0)
    return [names[int(i * step)] for i in range(min(count, len(names)))]


def _thumbnails(image: Array, mask: Mask | None, table: ClassTable | None) -> tuple[Array, Array]:
    stride = max(1, -(-max(image.shape[:2]) // THUMBNAIL))
    small = image[::stride, ::stride]
    blank = np.full((*small.shape[:2], 3), 255, np.uint8)
    labels = blank if mask is None or table is None else paint(mask[::stride, ::stride], table.palette)
    return to_rgb(small), labels


def to_rgb(image: Array) -> Array:
    """(H, W, bands) of any type as 8-bit (H, W, 3): the first three bands, stretched between their 2nd and 98th
    percentile unless they are 8 bit already."""
    shown = image[..., :3] if image.shape[2] >= 3 else image[..., :1].repeat(3, axis=-1)
    if shown.dtype == np.uint8:
        return np.ascontiguousarray(shown)
    values = np.nan_to_num(shown.astype(np.float64))
    low, high = np.percentile(values, (2, 98))
    scaled: Array = (np.clip((values - low) / max(high - low, 1e-12), 0, 1) * 255).astype(np.uint8)
    return scaled


def paint(mask: Mask, palette: tuple[Colour, ...]) -> Array:
    """(H, W) ids as (H, W, 3) colours; ignored pixels are black."""
    colours = np.zeros((256, 3), np.uint8)
    colours[: len(palette)] = palette
    painted: Array = colours[mask]
    return painted
