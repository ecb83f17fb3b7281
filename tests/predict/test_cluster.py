"""Bands over Ray: the same bytes as one process, also when workers die."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from crispseg.errors import UserError
from crispseg.geo.maps import MapChoice
from crispseg.predict.batch import predict_scenes
from crispseg.predict.engines import cluster
from crispseg.predict.scene import Request
from crispseg.predict.work import Settings
from tests.geo.rasters import UTM, random_pixels, write_raster
from tests.predict.standins import StandIn

REQUEST = Request(Settings(32, 8), maps=MapChoice(confidence=True))


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray")
    root = str(Path(__file__).parents[2])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": {"PYTHONPATH": root}},
    )
    yield ray
    ray.shutdown()


class Mortal(StandIn):
    """Its first process to come this far is killed."""

    def __init__(self, marker):
        super().__init__()
        self.marker = str(marker)

    def forward(self, x):
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


class Broken(StandIn):
    def forward(self, x):
        return x


@pytest.fixture
def scene(tmp_path):
    return write_raster(tmp_path / "scene.tif", random_pixels(3, 200, 60), **UTM)


def maps(folder):
    return [(folder / name).read_bytes() for name in ("map.tif", "map_confidence.tif")]


def test_a_cluster_gives_the_same_bytes_even_if_a_worker_dies(ray, scene, tmp_path):
    marker = tmp_path / "marker"
    marker.touch()
    model = Mortal(marker)
    assert not predict_scenes([scene], str(tmp_path / "one" / "map.tif"), model, REQUEST).failures
    marker.unlink()
    report = predict_scenes([scene], str(tmp_path / "many" / "map.tif"), model, REQUEST, engine="ray")
    assert not report.failures
    assert marker.exists(), "a worker was killed"
    assert maps(tmp_path / "many") == maps(tmp_path / "one")


def test_a_users_mistake_on_a_worker_is_told_like_one_here(ray, scene, tmp_path):
    report = predict_scenes([scene], str(tmp_path / "map.tif"), Broken(), REQUEST, engine="ray")
    assert report.failures[0][1].startswith("model 'stand_in' returned (1, 3, 32, 32)")
    assert not list(tmp_path.glob("*map*"))


def test_runs_are_cut_evenly():
    assert cluster.split([range(10), range(20, 23)], workers=3) == [
        range(3),
        range(3, 6),
        range(6, 9),
        range(9, 10),
        range(20, 23),
    ]
    assert cluster.split([range(5)], workers=100) == [range(k, k + 1) for k in range(5)]
    assert cluster.split([], workers=2) == []


def test_without_ray_it_says_what_to_install(monkeypatch, scene, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UserError, match=r"crispseg\[ray\]"):
        predict_scenes([scene], str(tmp_path / "map.tif"), StandIn(), REQUEST, engine="ray")
