"""The maps of a scene, written from its finished bands in one pass: classes, confidence, probabilities, boundaries."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crispseg import __version__
from crispseg.data.colours import class_colours
from crispseg.files import write_text
from crispseg.geo.areas import ClassAreas
from crispseg.geo.grid import Grid
from crispseg.geo.style import Style, sidecars
from crispseg.geo.writer import NODATA, MapKind, MapWriter
from crispseg.models.base import SegmentationModel
from crispseg.outputs import Workplace
from crispseg.raster.products import SURE, Band


@dataclasses.dataclass(frozen=True)
class Legend:
    """What the class map says about itself."""

    model: str
    version: str  # of the weights
    classes: tuple[str, ...]
    palette: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, model: SegmentationModel, version: str) -> Legend:
        names = model.info.classes or tuple(f"class {k}" for k in range(model.num_classes))
        palette = model.info.palette if len(model.info.palette) == len(names) else class_colours(names)
        return cls(model.title, version, names, palette)

    @property
    def style(self) -> Style:
        return Style(self.classes, self.palette, tuple(range(len(self.classes))))

    def tags(self) -> dict[str, str]:
        return {
            "CLASSES": json.dumps(dict(enumerate(self.classes)), ensure_ascii=False),
            "MODEL": self.model,
            "MODEL_VERSION": self.version,
            "TIFFTAG_SOFTWARE": f"crispseg {__version__}",
        }


@dataclasses.dataclass(frozen=True)
class MapChoice:
    """Which maps beside the class map, and how all are compressed."""

    confidence: bool = False
    probabilities: bool = False
    boundaries: bool = False
    compress: str = "deflate"

    def paths(self, target: Path) -> dict[str, Path]:
        chosen = {name: getattr(self, name) for name in ("confidence", "probabilities", "boundaries")}
        beside = {name: target.with_name(f"{target.stem}_{name}.tif") for name, wanted in chosen.items() if wanted}
        return {**beside, "classes": target}  # the class map last: when it is there, all are


def style_paths(target: Path) -> dict[str, Path]:
    return dict(zip(("gdal_style", "qgis_style"), sidecars(target), strict=True))


def write_maps(
    bands: Iterable[Band], place: Workplace, target: Path, grid: Grid, legend: Legend, choice: MapChoice
) -> tuple[dict[str, Path], ClassAreas]:
    """Finished files in the workplace, by what they hold, and the area of every class."""
    areas = ClassAreas(grid)
    kinds = _kinds(legend)
    writers = {
        name: MapWriter(place, path, grid, kinds[name], choice.compress) for name, path in choice.paths(target).items()
    }
    outline = Outline()
    try:
        for band in bands:
            areas.add(band.top, band.classes)
            for name, writer in writers.items():
                if name == "boundaries":
                    for rows in outline.add(band.classes):
                        writer.write(rows[None])
                else:
                    rows = getattr(band, name)
                    writer.write(rows if rows.ndim == 3 else rows[None])
        if "boundaries" in writers:
            writers["boundaries"].write(outline.last()[None])
        finished = {name: writer.finish() for name, writer in writers.items()}
        return {**_style_files(place, target, legend, areas), **finished}, areas
    finally:
        for writer in writers.values():
            writer.close()


def _style_files(place: Workplace, target: Path, legend: Legend, areas: ClassAreas) -> dict[str, Path]:
    """What shows the class map named and coloured, written in the workplace."""
    counts = areas.pixels[: len(legend.classes)].tolist()
    texts = (legend.style.gdal_sidecar(counts), legend.style.raster_qml())
    files = {}
    for (name, path), text in zip(style_paths(target).items(), texts, strict=True):
        files[name] = place.making(path.name)
        write_text(files[name], text)
    return files


class Outline:
    """1 where a pixel has a neighbour (left, right, above, below) of another class, 0 elsewhere, 255 without data."""

    def __init__(self) -> None:
        self._above: NDArray[np.uint8] | None = None
        self._rows: NDArray[np.uint8] | None = None

    def add(self, rows: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
        """Rows are given back once the row below them is known."""
        if not len(rows):
            return
        if self._rows is not None:
            yield self._outline(rows[:1])
            self._above = self._rows[-1:]
        self._rows = rows

    def last(self) -> NDArray[np.uint8]:
        return self._outline(None)

    def _outline(self, below: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
        assert self._rows is not None
        parts = [part for part in (self._above, self._rows, below) if part is not None]
        full = np.concatenate(parts)
        edge = np.zeros(full.shape, bool)
        for axis in (0, 1):
            one, other = np.moveaxis(full, axis, 0)[:-1], np.moveaxis(full, axis, 0)[1:]
            differ = (one != other) & (one != NODATA) & (other != NODATA)
            along = np.moveaxis(edge, axis, 0)
            along[:-1] |= differ
            along[1:] |= differ
        first = 0 if self._above is None else 1
        rows = slice(first, first + len(self._rows))
        return np.where(full[rows] == NODATA, NODATA, edge[rows]).astype(np.uint8)


def _kinds(legend: Legend) -> dict[str, MapKind]:
    about = {key: value for key, value in legend.tags().items() if key != "CLASSES"}
    boundary_colours = ((0, 0, 0), (255, 255, 255))
    return {
        "classes": MapKind(("class",), "MODE", legend.palette, tags=legend.tags()),
        "confidence": MapKind(("confidence",), "AVERAGE", scale=1 / SURE, tags=about),
        "probabilities": MapKind(legend.classes, "AVERAGE", scale=1 / SURE, tags=about),
        "boundaries": MapKind(("boundary",), "NEAREST", boundary_colours, tags=about),
    }
