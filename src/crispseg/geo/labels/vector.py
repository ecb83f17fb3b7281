"""`crisp prepare vector`: orthophotos and drawn polygons to a folder that training reads."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crispseg.data.classes import IGNORE, ClassTable
from crispseg.data.manifest import FORMAT, MANIFEST
from crispseg.errors import UserError
from crispseg.files import write_json, write_text
from crispseg.geo.labels.burn import ORDERS, Burner, refuse_overlap
from crispseg.geo.labels.colours import class_table
from crispseg.geo.labels.folder import STRIP, Chip, Labels, write_chip
from crispseg.geo.labels.images import Ortho, common_resolution, open_orthos, windows
from crispseg.geo.labels.layers import LabelLayer, Shapes, short_crs
from crispseg.geo.labels.picture import PICTURES, Drawn, draw_labels
from crispseg.geo.labels.place import CLASSES, LAYOUT, PICTURE, check_replaceable, making_folder
from crispseg.raster.source import Window
from crispseg.reading import plain_cell


@dataclasses.dataclass(frozen=True)
class VectorChoice:
    """What is drawn where, and how it is cut. Empty words mean: not given."""

    labels: str
    field: str
    layer: str = ""
    labels_crs: str = ""
    overlaps: str = "error"  # or first, last, smallest, or a field of numbers
    interest: str = ""  # a layer of polygons; what lies outside is ignored
    interest_layer: str = ""
    background: str = ""  # the class of what no polygon covers; not given: ignored
    classes: str = ""  # a class table
    bands: tuple[str, ...] = ()
    chip: int = 1024  # side in pixels; 0: images stay whole

    def __post_init__(self) -> None:
        if self.chip < 0 or 0 < self.chip < 32:
            raise UserError(f"chips must have at least 32 pixels a side (or 0 for whole images), not {self.chip}")


def prepare_vector(
    images: Sequence[str],
    choice: VectorChoice,
    out: str,
    say: Callable[[str], None] = lambda text: None,
    step: Callable[[int, int], None] = lambda done, total: None,
    existing: str = "refuse",
) -> dict[str, Any]:
    """Write the folder `out` (all of it or nothing) and give its manifest.

    A folder that holds something is refused; if `existing` is replace, one with nothing but what was written here
    before is replaced. Pixels are read, burnt and written strip by strip; held in memory are the polygons that touch
    one image.
    """
    target = Path(out)
    inputs = [*images, choice.labels, choice.interest, choice.classes]
    check_replaceable(target, existing, inputs)
    order = "" if choice.overlaps in ORDERS else choice.overlaps
    layer = LabelLayer(choice.labels, choice.layer, choice.field, choice.labels_crs, order)
    table, ids = _classes(layer, choice)
    orthos = open_orthos(images, choice.bands)
    resolution, remarks = common_resolution(orthos)
    for remark in remarks:
        say(remark)
    work = _Work(choice, layer, table, ids, say)
    total = sum(1 for ortho in orthos for _ in windows(ortho.grid.height, ortho.grid.width, choice.chip))
    chips: list[tuple[Ortho, Chip]] = []
    drawn: list[Drawn] = []
    with making_folder(target, existing, inputs) as aside:
        done = 0
        for ortho in orthos:
            labels = work.labels_on(ortho)
            with ortho.source.reading(choice.chip or STRIP):
                for window in windows(ortho.grid.height, ortho.grid.width, choice.chip if labels else 0):
                    done += 1
                    step(done, total)
                    if labels is not None:
                        chip = write_chip(aside, ortho, labels, window, _chip_name(ortho, window))
                        if len(drawn) < PICTURES and done * PICTURES >= len(drawn) * total:  # spread over all
                            drawn += chip.pictures
                        chip.pictures = []
                        chips += [(ortho, chip)] if chip.labelled else []
            if labels is not None:
                refuse_overlap(labels.burner.overlap, table.names, ortho.path, choice.labels)
            ortho.source.close()
        step(total, total)
        for sentence in layer.faults.sentences(choice.labels):
            say(sentence)
        if not chips:
            raise UserError(work.why_nothing(orthos))
        manifest = _manifest(choice, table, orthos, chips, resolution)
        _write_tables(aside, table, manifest)
        draw_labels(drawn, table, aside / PICTURE)
    return manifest


@dataclasses.dataclass
class _Work:
    choice: VectorChoice
    layer: LabelLayer
    table: ClassTable
    ids: dict[Any, int]
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self.interest: LabelLayer | None = None
        if self.choice.interest:
            self.interest = LabelLayer(self.choice.interest, self.choice.interest_layer)

    def labels_on(self, ortho: Ortho) -> Labels | None:
        """What is to be burnt onto an image; None, said aloud, where there is nothing."""
        shapes = self.layer.on(ortho.grid, ortho.path)
        if self.layer.is_elsewhere(ortho.grid):
            here, there = short_crs(ortho.grid.crs), short_crs(self.layer.crs)
            self.say(f"{self.choice.labels} is in {there} and {ortho.path} in {here}: polygons are reprojected")
        interest: Shapes | None = None
        if self.interest is not None:
            interest = self.interest.on(ortho.grid, ortho.path)
            if not len(interest.polygons):
                self.say(f"{ortho.path} lies outside the area of interest {self.choice.interest}: left out")
                return None
        if not len(shapes.polygons) and not (interest is not None and self.choice.background):
            self.say(f"no polygon of {self.choice.labels} lies on {ortho.path}: left out")
            return None
        background = self.table.names.index(self.choice.background) if self.choice.background else IGNORE
        return Labels(Burner(shapes, self.ids, self.choice.overlaps, background), interest, self.table)

    def why_nothing(self, orthos: Sequence[Ortho]) -> str:
        bounds = self.layer.info.get("total_bounds")
        first = orthos[0]
        here = ", ".join(f"{x:.6g}" for x in self.layer.bounds(first.grid, first.path))
        drawn = ", ".join(f"{x:.6g}" for x in bounds) if bounds is not None else "unknown places"
        system = f" (both in {short_crs(self.layer.crs)})" if self.layer.crs else ""
        return (
            f"the polygons of {self.choice.labels} and the images do not overlap: {self.choice.labels} covers {drawn} "
            f"and {first.path} {here}{system}; check both reference systems"
        )


def _classes(layer: LabelLayer, choice: VectorChoice) -> tuple[ClassTable, dict[Any, int]]:
    table, ids = class_table(layer, choice.classes, choice.background)
    if choice.background and choice.background not in table.names:
        raise UserError(f"--background {choice.background!r} is no class of {choice.classes}")
    return ClassTable(table.names, table.palette, tuple(range(len(table.names)))), ids


def _chip_name(ortho: Ortho, window: Window) -> str:
    whole = (window.height, window.width) == (ortho.grid.height, ortho.grid.width)
    return ortho.name if whole else f"{ortho.name}_{window.top}_{window.left}"


def _manifest(
    choice: VectorChoice,
    table: ClassTable,
    orthos: Sequence[Ortho],
    chips: Sequence[tuple[Ortho, Chip]],
    resolution: float | None,
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "dataset": "own",
        "layout": LAYOUT,
        "classes": table.to_rows(),
        "labels": {"full": "masks"},
        "bands": list(orthos[0].band_names),
        "resolution": resolution,
        "protocols": {},
        "choices": dataclasses.asdict(choice),
        "sources": [{"image": o.path, "crs": short_crs(o.grid.crs) if o.grid.crs else None} for o in orthos],
        "histogram": {"full": np.sum([chip.histogram for _, chip in chips], axis=0).tolist()},
        "images": [_entry(ortho, chip) for ortho, chip in chips],
    }


def _entry(ortho: Ortho, chip: Chip) -> dict[str, Any]:
    return {
        "name": chip.name,
        "image": f"images/{chip.name}.tif",
        "width": chip.window.width,
        "height": chip.window.height,
        "bands": len(ortho.band_names),
        "dtype": ortho.dtype,
        "sums": chip.sums.tolist(),
        "labels": {"full": {"file": f"masks/{chip.name}.tif", "histogram": chip.histogram.tolist(), "mended": 0}},
        "source": ortho.path,
        "window": list(chip.window),
    }


def _write_tables(folder: Path, table: ClassTable, manifest: dict[str, Any]) -> None:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("name", "id", "r", "g", "b"))
    rows.writerows((plain_cell(name), k, *table.palette[k]) for k, name in enumerate(table.names))
    write_text(folder / CLASSES, text.getvalue())
    write_json(folder / MANIFEST, manifest)
