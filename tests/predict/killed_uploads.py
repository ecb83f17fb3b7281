"""Maps a scene of an S3 server into it, kills the run with SIGKILL at random moments until it ends, and compares.

python tests/predict/killed_uploads.py ROUNDS
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from crispseg.geo import store
from tests.geo.rasters import UTM, random_pixels, write_raster
from tests.geo.servers import keys_in, s3_server
from tests.predict.killed_runs import start, wait_at_most


def contents(environment: dict[str, str], folder: str) -> dict[str, bytes]:
    names = [key for key in keys_in(environment) if key.startswith(f"{folder}/")]
    return {key.rpartition("/")[2]: store.read_bytes(f"s3://bucket/{key}", 1 << 30) for key in names}


def main(rounds: int) -> None:
    random.seed(0)
    with tempfile.TemporaryDirectory() as folder, s3_server() as environment:
        os.environ.update(environment)
        made = write_raster(Path(folder) / "scene.tif", random_pixels(3, 400, 300), **UTM)
        pid = os.fork()  # GDAL's threads must not be there when children are forked
        if pid == 0:
            store.put(Path(made), "s3://bucket/scene.tif")
            os._exit(0)
        os.waitpid(pid, 0)
        begun = time.monotonic()
        assert wait_at_most(
            start("s3://bucket/scene.tif", "s3://bucket/whole/map.tif", scratch=f"{folder}/scratch"), 120
        )
        whole_time = time.monotonic() - begun
        for k in range(rounds):
            kills = 0
            while not wait_at_most(
                start("s3://bucket/scene.tif", f"s3://bucket/killed_{k}/map.tif", scratch=f"{folder}/scratch"),
                random.uniform(0.1, 1.1) * whole_time,
            ):
                kills += 1
                if f"killed_{k}/map.tif" in keys_in(environment) and not any(
                    Path(folder, "scratch").rglob("moves.json")
                ):
                    break  # killed when all was done
            print(f"round {k}: killed {kills} times", flush=True)
        expected = contents(environment, "whole")
        assert len(expected) == 6, sorted(expected)
        for k in range(rounds):
            assert contents(environment, f"killed_{k}") == expected, f"round {k} gave other bytes"
        assert not any(path.is_file() for path in Path(folder, "scratch").rglob("*")), "nothing is left in the scratch"
        print("same bytes", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
