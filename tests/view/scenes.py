"""Small scenes for the tests of the view: maps, an image, labels, confidence and polygons that belong together."""

from __future__ import annotations

import dataclasses
import json
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np

from crispseg.view.scene import Files
from tests.geo.rasters import UTM, write_raster

NAMES = ("building", "road", '<script>alert(1)</script> & "tree"')
COLOURS = ((200, 30, 30), (90, 90, 90), (30, 160, 60))
HEIGHT, WIDTH = 600, 840


@dataclasses.dataclass(frozen=True)
class Made:
    files: Files
    classes: np.ndarray  # (H, W), 255 where there is no data
    other: np.ndarray
    truth: np.ndarray
    confidence: np.ndarray
    image: np.ndarray  # (3, H, W)


def make(folder: Path, crs: bool = True, names: tuple[str, ...] = NAMES) -> Made:
    """Blobs of three classes with a corner that has no data."""
    draws = np.random.default_rng(3)
    coarse = draws.integers(0, 3, (HEIGHT // 20, WIDTH // 20)).astype(np.uint8)
    truth = coarse.repeat(20, 0).repeat(20, 1)
    classes = np.where(draws.random(truth.shape) < 0.9, truth, (truth + 1) % 3).astype(np.uint8)
    classes[:40, :60] = 255
    other = np.roll(classes, 5, axis=1)
    confidence = np.where(classes == 255, 255, draws.integers(80, 255, classes.shape)).astype(np.uint8)
    image = draws.integers(0, 255, (3, HEIGHT, WIDTH)).astype(np.uint8)
    place = UTM if crs else {}
    table = {k: (*colour, 255) for k, colour in enumerate(COLOURS)}
    about = {"tags": {"CLASSES": json.dumps(dict(enumerate(names)))}, "colormap": table, "nodata": 255}
    files = Files(
        (write_raster(folder / "map.tif", classes, **about, **place),),
        image=write_raster(folder / "image.tif", image, **place),
        truth=write_raster(folder / "truth.tif", truth, **place),
        confidence=write_raster(folder / "map_confidence.tif", confidence, nodata=255, **place),
    )
    write_raster(folder / "other.tif", other, **about, **place)
    return Made(files, classes, other, truth, confidence, image)


def fetch(address: str, **options: object) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body; refusals are answers too."""
    request = urllib.request.Request(address, **options)  # type: ignore[arg-type]
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()
