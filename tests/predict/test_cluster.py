"""Bands over Ray: the same bytes as one process, also when workers die."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
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
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
            patch.delenv(name, raising=False)
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        cluster.lock_up()
        import ray

        root = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        ray.init(
            "local",
            num_cpus=2,
            include_dashboard=False,
            runtime_env={"env_vars": {"PYTHONPATH": root}},
            **cluster.QUIETLY,
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


def test_nobody_else_may_join_and_nobody_outside_may_knock(ray):
    """A second process without the token runs no code; no port is open to other machines."""
    address = ray.get_runtime_context().gcs_address
    code = f"""
import ray
ray.init({address!r}, log_to_driver=False)
print("ran", ray.get(ray.remote(lambda: 42).remote(), timeout=20))
"""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    done = subprocess.run([sys.executable, "-c", code], env=bare, capture_output=True, text=True, timeout=90)
    assert done.returncode != 0 and "ran" not in done.stdout
    assert "token" in done.stderr
    psutil = pytest.importorskip("psutil")
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    ports = [c.laddr for p in processes for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert len(ports) > 3
    assert not [port for port in ports if port.ip not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")]


def test_what_the_user_has_set_stays(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "1")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    cluster.lock_up()
    assert os.environ["RAY_AUTH_MODE"] == "disabled" and "RAY_AUTH_TOKEN" not in os.environ
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "1"


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


def test_a_cluster_that_does_not_start_is_one_sentence(monkeypatch):
    """Found by the kill campaign: Ray raises a bare Exception."""
    ray = pytest.importorskip("ray")

    def fail(*args, **more):
        raise Exception("The current node timed out during startup. This could happen because ...")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fail)
    monkeypatch.setenv("RAY_ADDRESS", "nowhere:1")
    with pytest.raises(UserError, match="cannot join the Ray cluster nowhere:1: The current node timed out"):
        cluster.RayEngine()
