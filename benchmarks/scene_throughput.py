"""Whole-scene pixels per second against the bare model on the same tiles.

    python benchmarks/scene_throughput.py --model crisp_nano --size 3072                 # CPU, file to file
    python benchmarks/scene_throughput.py --model crisp_tiny --size 12288 --source numpy --device cuda

The bare model runs on tiles that are in memory and normalised already, one after the other and in batches, and the
fastest way counts. The whole scene is read from a file, evaluated, blended, and written: with `--source raster` a
GeoTIFF to a Cloud Optimized GeoTIFF; with `--source numpy` (where rasterio is missing) a memory-mapped .npy file to
another, which goes to the disk when the system puts it there: how fast a disk syncs is not the question. Both count
the pixels of all tiles, overlaps included. Runs alternate and the best of each is taken, as the machine may be shared.
Results are added to benchmarks/results/scene_throughput.json; the .md is made from it.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import measure_and_record

import crispseg
from crispseg.models.base import ModelInfo, SegmentationModel
from crispseg.models.device import find_device
from crispseg.predict.bands import Pace
from crispseg.predict.evaluate import Evaluator
from crispseg.predict.plan import ScenePlan, make_plan
from crispseg.predict.work import Settings, Work
from crispseg.raster.products import Band, Products
from crispseg.raster.source import ArraySource

RESULTS = Path(__file__).parent / "results" / "scene_throughput.json"
TITLE = "Speed of whole scenes against the bare model"
NOTES = (
    "Millions of tile pixels per second; each line was made by its command. The first tile of a scene is evaluated "
    "alone to learn how much memory it takes, so scenes of few tiles come out lower: 0.89 to 0.98 in runs of 16 tiles, "
    "and once 0.53 while other programs ran on the same cores. The H200's line is of a time when scenes were not "
    "evaluated fused, nor was the bare model."
)


def make_image(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Smooth blotches with noise, so that compression has its usual work."""
    random = np.random.default_rng(0)
    coarse = random.integers(0, 200, (size // 32 + 1, size // 32 + 1, 3), dtype=np.uint8)
    image = coarse.repeat(32, axis=0).repeat(32, axis=1)[:size, :size]
    return image + random.integers(0, 40, image.shape, dtype=np.uint8)


def make_model(name: str) -> SegmentationModel:
    torch.manual_seed(0)
    model = crispseg.create_model(name, num_classes=6)
    model.info = ModelInfo(mean=(110.0,) * 3, std=(60.0,) * 3)
    return model.eval()


def raster_run(
    folder: Path, image: Any, model: SegmentationModel, settings: Settings, pace: Pace
) -> Callable[[], None]:
    import rasterio

    from crispseg.predict.batch import predict_scenes
    from crispseg.predict.scene import Request

    with rasterio.open(
        folder / "scene.tif",
        "w",
        driver="GTiff",
        height=image.shape[0],
        width=image.shape[1],
        count=3,
        dtype="uint8",
        tiled=True,
        compress="deflate",
        crs="EPSG:32633",
        transform=rasterio.Affine(0.1, 0, 400_000, 0, -0.1, 5_000_000),
    ) as dataset:
        dataset.write(np.moveaxis(image, 2, 0))

    def run() -> None:
        request = Request(settings, pace=pace)
        report = predict_scenes(
            [str(folder / "scene.tif")], str(folder / "map.tif"), model, request, existing="replace"
        )
        assert not report.failures, report.failures

    return run


def numpy_run(folder: Path, image: Any, model: SegmentationModel, settings: Settings, pace: Pace) -> Callable[[], None]:
    np.save(folder / "scene.npy", image)
    plan = make_plan(*image.shape[:2], settings.tile, settings.overlap)

    def run() -> None:
        source = ArraySource(np.load(folder / "scene.npy", mmap_mode="r"), model.info.mean)
        classes = np.lib.format.open_memmap(folder / "map.npy", "w+", np.uint8, image.shape[:2])

        def write(band: Band) -> None:
            classes[band.top : band.top + len(band.classes)] = band.classes

        with ThreadPoolExecutor(1) as writer:  # beside the computation, as `crisp predict` does
            for band in Work(source, model, plan, settings, Products(), pace).bands(range(plan.strips)):
                writer.submit(write, band)

    return run


def bare_ways(evaluator: Evaluator, plan: ScenePlan) -> dict[str, Callable[[], None]]:
    """Ways to run the model alone, fused as in a scene, on as many tiles: in batches, and on the CPU also one tile per
    thread."""
    device, half = evaluator.device, evaluator.precision == "bfloat16"

    def forward(x: torch.Tensor) -> None:
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=half):
            evaluator.network(x)

    def in_batches(size: int) -> None:
        x = torch.randn(size, 3, plan.rows.tile, plan.cols.tile, device=device)
        for done in range(0, plan.tiles, size):
            forward(x[: plan.tiles - done])
        if device.type == "cuda":
            torch.cuda.synchronize()

    def side_by_side() -> None:
        threads = torch.get_num_threads()
        x = torch.randn(1, 3, plan.rows.tile, plan.cols.tile)
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(forward, [x] * plan.tiles))
        torch.set_num_threads(threads)

    sizes = [1, 2] if device.type == "cpu" else [4, 16]
    ways = {f"batches of {size}": functools.partial(in_batches, size) for size in sizes}
    return ways if device.type == "cuda" else {**ways, "a tile per thread": side_by_side}


def timed(run: Callable[[], None]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def measure(args: argparse.Namespace) -> dict[str, Any]:
    device = find_device(args.device)
    model = make_model(args.model).to(device)
    settings = Settings(args.tile, device=str(device), precision=args.precision)
    pace = Pace(args.batch_size, args.workers)
    plan = make_plan(args.size, args.size, args.tile)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        prepare = raster_run if args.source == "raster" else numpy_run
        scene = prepare(Path(folder), make_image(args.size), model, settings, pace)
        if device.type == "cuda":
            scene()  # warms up
        ways = bare_ways(Evaluator(model, device, precision=args.precision), plan)
        best_scene, bare = float("inf"), dict.fromkeys(ways, float("inf"))
        for _ in range(args.repeats):
            best_scene = min(best_scene, timed(scene))
            for way, run in ways.items():
                bare[way] = min(bare[way], timed(run))
    pixels = plan.tiles * plan.rows.tile * plan.cols.tile
    best_way = min(bare, key=lambda way: bare[way])
    return {
        "model": args.model,
        "device": _device_name(device),
        "precision": args.precision,
        "scene": f"{args.size} x {args.size}",
        "tile": args.tile,
        "tiles": plan.tiles,
        "source": args.source,
        "bare_Mpx_per_s": round(pixels / bare[best_way] / 1e6, 3),
        "bare_way": best_way,
        "scene_Mpx_per_s": round(pixels / best_scene / 1e6, 3),
        "ratio": round(bare[best_way] / best_scene, 3),
        "command": "python benchmarks/scene_throughput.py " + " ".join(_words(args)),
    }


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} CPU threads"


def _words(args: argparse.Namespace) -> Iterator[str]:
    for name, value in vars(args).items():
        if name not in ("folder", "no_record") and value is not None:
            yield f"--{name.replace('_', '-')} {value}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="crisp_nano")
    parser.add_argument("--size", type=int, default=3072, help="pixels on a side of the scene")
    parser.add_argument("--tile", type=int, default=1024)
    parser.add_argument("--source", default="raster", choices=("raster", "numpy"))
    parser.add_argument("--device")
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", help="where the scene and its map are put for the time of the run")
    measure_and_record(parser, measure, RESULTS, TITLE, NOTES)


if __name__ == "__main__":
    main()
