"""How long a browser waits for a tile of `crisp view`, on a scene of 40,000 x 40,000 px.

    python benchmarks/view_tiles.py --size 40000
    python benchmarks/view_tiles.py --size 40000 --pixels       # a scene without a reference system

A class map of blobs (a COG as `crisp predict` writes it) and a three-band image (JPEG in tiles of 512 px, with
overviews) are made in a temporary folder. A client with six connections, as browsers have, pans over them at every
zoom level: screens of 4 x 3 tiles, image and map of each place, at random places. Each tile is asked for through HTTP,
once cold (no tile was asked for before) and once more, as a browser does that comes back. A screen is the time until
its last tile is there. CPU is what server and client together spend on a cold tile; a machine that does other work at
the same time, whose load is noted, makes the waiting longer, not the CPU time. Results are added to
benchmarks/results/view_tiles.json, and view_tiles.md is written anew.
"""

from __future__ import annotations

import argparse
import http.client
import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import rasterio
from rasterio.enums import Resampling
from record import measure_and_record

from crispseg.geo.grid import Grid
from crispseg.geo.maps import Legend, MapChoice, write_maps
from crispseg.outputs import Workplace
from crispseg.raster.products import Band
from crispseg.view.app import make_app
from crispseg.view.scene import Files, Scene
from crispseg.view.serving import Server
from crispseg.view.space import tile_box, to_metres

RESULTS = Path(__file__).parent / "results" / "view_tiles.json"
TITLE = "Tiles of crisp view"
NOTES = (
    "Milliseconds on two CPU cores, which server and client share; tiles of 512 px, image and map together, six "
    "connections. Cold: a tile that nobody asked for before. Screen: 24 tiles (2048 x 1536 px of image and map), "
    "until the last is there."
)
CONNECTIONS, ACROSS, DOWN, SCREENS = 6, 4, 3, 6
UTM = ("EPSG:32633", (0.2, 0.0, 400_000.0, 0.0, -0.2, 5_000_000.0))
CLASSES = ("building", "road", "tree", "grass", "water", "other")


def blobs(side: int = 4096) -> np.ndarray:
    """(side, side) classes with curved outlines."""
    y, x = np.arange(side, dtype=np.float32)[:, None], np.arange(side, dtype=np.float32)
    field = np.sin(x / 61 + np.sin(y / 83)) + np.sin(y / 47 + np.sin(x / 191)) + np.sin((x + y) / 977)
    return (np.clip((field + 3) / 6, 0, 0.999) * len(CLASSES)).astype(np.uint8)


def make_map(folder: Path, size: int, grid: Grid) -> str:
    target = folder / "map.tif"
    pattern = np.tile(blobs(), (1, -(-size // 4096)))[:, :size]
    tops = range(0, size, 512)
    bands = (Band(i, top, pattern[top % 4096 : top % 4096 + min(512, size - top)]) for i, top in enumerate(tops))
    palette = ((200, 30, 30), (90, 90, 90), (20, 110, 40), (140, 200, 90), (40, 90, 200), (230, 200, 120))
    place = Workplace(target)
    made, _ = write_maps(bands, place, target, grid, Legend("stand-in", "", CLASSES, palette), MapChoice())
    made["classes"].rename(target)
    place.remove()
    return str(target)


def make_image(folder: Path, size: int, grid: Grid) -> str:
    path = folder / "image.tif"
    y, x = np.mgrid[0:512, 0:512]
    waves = [128 + 60 * np.sin(x / (9 + 4 * k)) * np.cos(y / (7 + 3 * k)) for k in range(3)]
    block = np.stack(waves).astype(np.uint8)
    place = {"crs": grid.crs, "transform": rasterio.Affine(*grid.transform)} if grid.crs else {}
    options = {"compress": "JPEG", "photometric": "YCBCR", "interleave": "pixel", "bigtiff": "IF_SAFER"}
    with rasterio.open(
        path, "w", driver="GTiff", width=size, height=size, count=3, dtype="uint8", tiled=True, blockxsize=512,
        blockysize=512, **options, **place,
    ) as dataset:  # fmt: skip
        row = np.tile(block, (1, 1, -(-size // 512)))[:, :, :size]
        for top in range(0, size, 512):
            rows = min(512, size - top)
            dataset.write(row[:, :rows], window=((top, top + rows), (0, size)))
    with rasterio.open(path, "r+") as dataset:
        dataset.build_overviews([2**k for k in range(1, 8)], Resampling.average)
    return str(path)


class Client:
    """Keeps one connection per thread, as a browser does."""

    def __init__(self, server: Server) -> None:
        self.server, self.own = server, threading.local()
        self.pool = ThreadPoolExecutor(CONNECTIONS)

    def tile(self, path: str) -> float:
        if not hasattr(self.own, "connection"):
            self.own.connection = http.client.HTTPConnection("127.0.0.1", self.server.port)
        begun = time.perf_counter()
        self.own.connection.request("GET", f"/{self.server.token}/scenes/0/tiles/{path}")
        answer = self.own.connection.getresponse()
        body = answer.read()
        assert answer.status == 200 and body, (answer.status, path)
        return (time.perf_counter() - begun) * 1000

    def screen(self, paths: list[str]) -> tuple[list[float], float]:
        begun = time.perf_counter()
        times = list(self.pool.map(self.tile, paths))
        return times, (time.perf_counter() - begun) * 1000


def places(scene: Scene) -> list[list[str]]:
    """Screens at random places of the map, at every zoom level from the whole map to single pixels."""
    draws = np.random.default_rng(0)
    west, south, east, north = scene.reference.box
    (left, low), (right, high) = to_metres(west, south), to_metres(east, north)
    whole = tile_box(0, 0, 0)
    screens = []
    for z in range(scene.reference.zoom - 6, scene.reference.zoom + 1):
        side = (whole.east - whole.west) / 2**z
        for _ in range(SCREENS):
            x = int((draws.uniform(left, right) - whole.west) // side)
            y = int((whole.north - draws.uniform(low, high)) // side)
            spots = [(x + i, y + j) for i in range(ACROSS) for j in range(DOWN)]
            screens.append([f"{layer}/{z}/{i}/{j}" for i, j in spots for layer in ("image", "a")])
    return screens


def measure(args: argparse.Namespace) -> dict[str, object]:
    crs, transform = ("", (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)) if args.pixels else UTM
    wkt = rasterio.crs.CRS.from_string(crs).to_wkt() if crs else ""
    grid = Grid(args.size, args.size, transform, wkt)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        scene = Scene(Files((make_map(folder, args.size, grid),), make_image(folder, args.size, grid)))
        print(*(f"{p.name} {p.stat().st_size / 2**20:.0f} MiB" for p in folder.glob("*.tif")), flush=True)
        load = os.getloadavg()[0]
        server = Server(make_app([scene]))
        stop = server.start()
        client = Client(server)
        screens = places(scene)
        used = time.process_time()
        cold = [client.screen(paths) for paths in screens]
        used = time.process_time() - used
        warm = [client.screen(paths) for paths in screens[-SCREENS:]]
        begun = time.perf_counter()
        scene.counting.wait()
        counted = time.perf_counter() - begun
        stop()
    tiles = np.concatenate([times for times, _ in cold])
    again = np.concatenate([times for times, _ in warm])
    return {
        "pixels": f"{args.size} x {args.size}",
        "reference system": "none" if args.pixels else "UTM, warped",
        "tiles": len(tiles),
        "cold p50": round(float(np.percentile(tiles, 50)), 1),
        "cold p95": round(float(np.percentile(tiles, 95)), 1),
        "again p50": round(float(np.percentile(again, 50)), 1),
        "again p95": round(float(np.percentile(again, 95)), 1),
        "CPU per tile": round(1000 * used / len(tiles), 1),
        "screen p50": round(float(np.percentile([whole for _, whole in cold], 50))),
        "screen p95": round(float(np.percentile([whole for _, whole in cold], 95))),
        "counting every pixel, s": round(counted, 1),
        "load of the machine before": round(load, 1),
        "command": f"python benchmarks/view_tiles.py --size {args.size}{' --pixels' * args.pixels}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=40_000, help="pixels on a side")
    parser.add_argument("--pixels", action="store_true", help="without a reference system")
    parser.add_argument("--folder", help="where the scene is put for the time of the run")
    measure_and_record(parser, measure, RESULTS, TITLE, NOTES)


if __name__ == "__main__":
    main()
