"""Time and memory of `crisp prepare vector`: polygons drawn over a made-up orthophoto.

python benchmarks/labels.py --side 10000 --polygons 100000
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pyogrio
import rasterio
import shapely

from crispseg.geo.labels.vector import VectorChoice, prepare_vector

PIXEL = 0.2  # metres


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=10_000, help="of the orthophoto, px")
    parser.add_argument("--polygons", type=int, default=100_000)
    parser.add_argument("--chip", type=int, default=1024, help="0: the image stays whole")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        image, labels = make_ortho(Path(folder), args.side), draw(Path(folder), args.side, args.polygons)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        choice = VectorChoice(labels, "class", overlaps="last", chip=args.chip)
        manifest = prepare_vector([image], choice, str(Path(folder) / "data"))
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    told = {"seconds": round(seconds, 1), "peak_MiB": peak >> 10, "peak_before_MiB": before >> 10}
    print(json.dumps({**vars(args), "images": len(manifest["images"]), **told}))


def make_ortho(folder: Path, side: int) -> str:
    """Noise, written strip by strip: as hard to pack as any photo, and harder."""
    rows = np.random.default_rng(0).integers(1, 250, (3, 512, side)).astype(np.uint8)
    place = rasterio.Affine(PIXEL, 0, 400_000, 0, -PIXEL, 5_000_000)
    size = {"width": side, "height": side, "count": 3, "dtype": "uint8", "crs": "EPSG:32633", "transform": place}
    with rasterio.open(folder / "ortho.tif", "w", tiled=True, blockxsize=512, blockysize=512, **size) as file:
        for top in range(0, side, 512):
            count = min(512, side - top)
            file.write(rows[:, :count], window=((top, top + count), (0, side)))
    return str(folder / "ortho.tif")


def draw(folder: Path, side: int, count: int) -> str:
    """Discs of 1 to 3 m of three classes, anywhere."""
    rng = np.random.default_rng(1)
    x, y = rng.uniform(0, side * PIXEL, (2, count))
    discs = shapely.buffer(shapely.points(400_000 + x, 5_000_000 - y), rng.uniform(1, 3, count), quad_segs=4)
    names = np.array(["roof", "road", "tree"], object)[rng.integers(0, 3, count)]
    pyogrio.raw.write(
        folder / "labels.gpkg", shapely.to_wkb(discs), [names], ["class"], crs="EPSG:32633", geometry_type="Polygon",
        driver="GPKG",
    )  # fmt: skip
    return str(folder / "labels.gpkg")


if __name__ == "__main__":
    main()
