"""Peak resident memory of a whole scene, against that of the model on one tile.

    python benchmarks/scene_memory.py --size 40000                      # a cheap stand-in model, 6 classes
    python benchmarks/scene_memory.py --size 10000 --model crisp_nano
    python benchmarks/scene_memory.py --size 40000 --model crisp_nano_aerial --pictures data/ucmerced

The scene is a sparse GeoTIFF (three bands, no data stored), or with `--pictures` a mosaic of a folder's pictures as
JPEG in tiles, as orthophotos come. The baseline is the process after the model has evaluated
one tile; "beyond the model" is the peak of the whole run less that baseline's peak. Results are added to
benchmarks/results/scene_memory.json, and the table in scene_memory.md is written anew from it.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from record import measure_and_record
from torch import Tensor

import crispseg
from crispseg import memory
from crispseg.geo.maps import MapChoice
from crispseg.geo.polygons import PolygonChoice
from crispseg.models.base import ModelInfo, SegmentationModel
from crispseg.models.shipped import list_shipped
from crispseg.predict.batch import predict_scenes
from crispseg.predict.evaluate import Evaluator
from crispseg.predict.plan import make_plan
from crispseg.predict.scene import Request
from crispseg.predict.work import Settings

RESULTS = Path(__file__).parent / "results" / "scene_memory.json"
TITLE = "Memory of whole scenes"
NOTES = (
    "Peak resident memory in MiB. Two CPU cores; each line was made by its command. `--pictures` is of 2026-11-19, in "
    "bfloat16 (AVX512-BF16), the others in float32."
)
CLASSES = 6
PIXEL = 0.3  # m
SQUARE = 256  # pixels of a picture in the mosaic


class StandIn(SegmentationModel):
    """Costs next to nothing and gives a map of blocks, so that outputs are not empty."""

    def __init__(self) -> None:
        super().__init__()
        self.name, self.num_classes, self.in_channels, self.options = "stand-in", CLASSES, 3, {}

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        kind = (torch.arange(height)[:, None] // 97 + torch.arange(width) // 53) % CLASSES
        logits = torch.zeros(len(x), CLASSES, height, width)
        return logits.scatter_(1, kind.expand(len(x), 1, height, width), 5.0)


def make_model(name: str) -> SegmentationModel:
    if name in list_shipped():
        return crispseg.load(name)
    model = StandIn() if name == "stand-in" else crispseg.create_model(name, num_classes=CLASSES)
    model.info = ModelInfo(mean=(0.0,) * 3, std=(1.0,) * 3)
    return model.eval()


def make_scene(path: Path, height: int, width: int, pictures: Path | None) -> None:
    import rasterio
    from rasterio.windows import Window

    way = {"sparse_ok": True} if pictures is None else {"compress": "jpeg", "photometric": "ycbcr", "jpeg_quality": 85}
    with rasterio.open(
        path,
        "w",
        **way,
        driver="GTiff",
        width=width,
        height=height,
        count=3,
        dtype="uint8",
        tiled=True,
        blockxsize=512,
        blockysize=512,
        bigtiff="YES",
        crs="EPSG:32633",
        transform=rasterio.Affine(PIXEL, 0, 400_000, 0, -PIXEL, 5_000_000),
    ) as scene:
        if pictures is None:
            return
        squares = itertools.cycle(sorted(pictures.rglob("*.jpg")))
        for top in range(0, height, SQUARE):
            for left in range(0, width, SQUARE):
                rows, columns = min(SQUARE, height - top), min(SQUARE, width - left)
                square = np.asarray(Image.open(next(squares)).convert("RGB").resize((SQUARE, SQUARE)))
                scene.write(np.moveaxis(square[:rows, :columns], 2, 0), window=Window(left, top, columns, rows))


class PeakWatch:
    """The largest resident memory seen while it is open, looked at fifty times a second."""

    def __enter__(self) -> PeakWatch:
        self.peak = memory.resident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.02):
            self.peak = max(self.peak, memory.resident())


def measure(args: argparse.Namespace) -> dict[str, object]:
    model = make_model(args.model)
    request = Request(
        Settings(args.tile),
        maps=MapChoice(confidence=args.all_maps, probabilities=args.all_maps, boundaries=args.all_maps),
        polygons=PolygonChoice("gpkg") if args.all_maps else None,
    )
    height, width = args.height or args.size, args.size
    plan = make_plan(height, width, args.tile)
    with PeakWatch() as baseline:
        Evaluator(model, torch.device("cpu"))([np.zeros((3, plan.rows.tile, plan.cols.tile), np.uint8)])
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        scene = Path(folder) / "scene.tif"
        make_scene(scene, height, width, args.pictures)
        begun = time.perf_counter()
        with PeakWatch() as whole:
            report = predict_scenes([str(scene)], str(Path(folder) / "map.tif"), model, request)
        seconds = time.perf_counter() - begun
    if report.failures:
        raise SystemExit(report.failures[0][1])
    return {
        "model": args.model,
        "pixels": f"{width} x {height}",
        "classes": model.num_classes,
        "tile": args.tile,
        "tiles": plan.tiles,
        "outputs": "all maps and polygons" if args.all_maps else "class map",
        "model_on_one_tile_MiB": round(baseline.peak / 2**20),
        "whole_run_MiB": round(whole.peak / 2**20),
        "beyond_the_model_MiB": round((whole.peak - baseline.peak) / 2**20),
        "seconds": round(seconds),
        "command": f"python benchmarks/scene_memory.py --size {args.size} --model {args.model} --tile {args.tile}"
        + (f" --height {args.height}" if args.height else "")
        + " --all-maps" * args.all_maps
        + " --pictures data/ucmerced" * bool(args.pictures),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=40_000, help="pixels on a side")
    parser.add_argument("--height", type=int, help="rows, where the scene is not a square")
    parser.add_argument("--model", default="stand-in")
    parser.add_argument("--tile", type=int, default=1024)
    parser.add_argument("--all-maps", action="store_true")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="make the scene of these pictures")
    parser.add_argument("--folder", help="where the scene and its map are put for the time of the run")
    measure_and_record(parser, measure, RESULTS, TITLE, NOTES)


if __name__ == "__main__":
    main()
