"""Starts a scene, kills it with SIGKILL at a random moment, again until it ends, and compares the bytes.

    python tests/predict/killed_runs.py ROUNDS

Children are forked before torch starts any thread, so each begins at once.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from crispseg.geo.maps import MapChoice
from crispseg.geo.polygons import PolygonChoice
from crispseg.predict.bands import Pace
from crispseg.predict.batch import predict_scenes
from crispseg.predict.scene import Request, is_waiting
from crispseg.predict.work import Settings
from tests.geo.rasters import UTM, random_pixels, write_raster
from tests.predict.standins import StandIn

REQUEST = Request(Settings(64, 16), maps=MapChoice(True, True), polygons=PolygonChoice("gpkg"), pace=Pace(2, 2))


def start(scene: str, target: str, **options: str) -> int:
    child = os.fork()
    if child == 0:
        failed = True
        try:
            model = StandIn(reach=4)
            model.before = lambda x: time.sleep(0.01)
            failures = predict_scenes([scene], target, model, REQUEST, **options).failures
            print(*failures, file=sys.stderr)
            failed = bool(failures)
        finally:
            os._exit(failed)
    return child


def wait_at_most(child: int, seconds: float) -> bool:
    """Whether the child ended by itself, and well; otherwise it is killed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert status == 0, f"the run failed with status {status}"
            return True
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def main(rounds: int) -> None:
    random.seed(0)
    with tempfile.TemporaryDirectory() as folder:
        scene = write_raster(Path(folder) / "scene.tif", random_pixels(3, 400, 300), **UTM)
        begun = time.monotonic()
        assert wait_at_most(start(scene, f"{folder}/whole/map.tif"), 120)
        whole_time = time.monotonic() - begun
        expected = contents(Path(folder) / "whole")
        for k in range(rounds):
            target = Path(folder) / f"killed_{k}" / "map.tif"
            kills = 0
            while not wait_at_most(start(scene, str(target)), random.uniform(0.1, 1.1) * whole_time):
                kills += 1
                if target.exists() and not is_waiting(target):
                    break  # killed when all was done
            assert contents(target.parent) == expected, f"round {k} gave other bytes"
            print(f"round {k}: killed {kills} times, same bytes", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
