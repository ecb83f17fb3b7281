"""Trackers, each with the service's own files read back. MLflow and W&B run offline, where they are installed."""

import json
import struct

import pytest

from crispseg.errors import UserError
from crispseg.train import loop
from crispseg.train.config import config_from
from crispseg.train.track import Tracker, _Guarded, check_names, finite, flat, named_trackers
from tests.train import tiny


@pytest.fixture
def settings(tmp_path):
    folder = tiny.make_folder(tmp_path / "squares")
    return tiny.settings(folder, tmp_path / "run", schedule={"steps": 4}, val_every=2, log_every=1, save_every=2)


def test_names():
    assert check_names("none") == [] and check_names("") == []
    assert check_names(None) in ([], ["tensorboard"])
    with pytest.raises(UserError, match="unknown tracker 'tensorbord'; did you mean 'tensorboard'"):
        check_names("tensorbord")


def test_one_that_is_not_installed(monkeypatch):
    monkeypatch.setattr("crispseg.train.track._installed", lambda name: False)
    with pytest.raises(UserError, match=r"track=mlflow, wandb needs mlflow: pip install 'crispseg\[mlflow\]'"):
        check_names("mlflow, wandb")
    assert check_names(None) == []


def test_a_service_that_fails_is_left_out(tmp_path):
    class Broken(Tracker):
        def log(self, step, values):
            raise ConnectionError("no route\nto host")

        def close(self):
            raise AssertionError("not called any more")

    said = []
    tracker = _Guarded("mlflow", Broken(), said.append)
    tracker.begin(tmp_path, {}, 0)
    tracker.log(1, {})
    tracker.log(2, {})
    tracker.close()
    assert said == ["mlflow failed: no route to host; the run goes on without it, metrics.jsonl has everything"]


def test_flat_and_finite():
    assert flat({"a": {"b": 1, "c": {}}, "d": [2]}) == {"a.b": 1, "a.c": {}, "d": [2]}
    assert finite({"a": 1.0, "b": None, "c": float("nan"), "d": float("inf")}) == {"a": 1.0}


def test_none(settings, tmp_path):
    loop.train(config_from({**settings, "track": "none"}))
    assert not (tmp_path / "run" / "events").exists()


@pytest.mark.parametrize("place", ["file", "its own default"])
def test_mlflow_keeps_one_run_over_a_resume(settings, tmp_path, monkeypatch, place):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if place == "file":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "squares")
    stopped = loop.train(config_from({**settings, "track": "mlflow", "max_minutes": 1e-9}))
    client = mlflow.tracking.MlflowClient()
    identity = json.loads((stopped.out / "track.json").read_text())["mlflow"]
    assert client.get_run(identity).info.status == "KILLED"
    finished = loop.resume(stopped.out, ["max_minutes=null"])
    run = client.get_run(identity)
    assert run.info.status == "FINISHED" and run.info.run_name == "run"
    assert run.data.params["schedule.steps"] == "4"
    assert run.data.metrics["best/mIoU"] == pytest.approx(finished.scores["mIoU"])
    assert [m.step for m in client.get_metric_history(identity, "train/loss")] == [1, 2, 3, 4]
    assert {file.path for file in client.list_artifacts(identity)} == {"config.yaml", "result.json"}
    (experiment,) = client.search_experiments(filter_string="name = 'squares'")
    assert len(client.search_runs([experiment.experiment_id])) == 1


def test_wandb_offline(settings, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    result = loop.train(config_from({**settings, "track": "wandb"}))
    identity = json.loads((result.out / "track.json").read_text())["wandb"]
    (kept,) = (result.out / "wandb").glob(f"offline-run-*-{identity}/run-{identity}.wandb")
    records = _history(kept)
    losses = {item["step"]: item["train/loss"] for item in records if "train/loss" in item}
    log = [json.loads(line) for line in (result.out / "metrics.jsonl").read_text().splitlines()]
    assert losses == pytest.approx({item["step"]: item["train/loss"] for item in log if "train/loss" in item})


def _history(path):
    """The logged rows of an offline run's file."""
    from wandb.proto import wandb_internal_pb2

    rows = []
    for data in _log_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            rows.append({i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in record.history.item})
    return rows


def _log_records(file):
    """Of a log in LevelDB's format: blocks of 32 KiB; a piece has a checksum, its length and its kind (2, 3: more)."""
    place, whole = 7, b""  # after W&B's own header
    while place + 7 <= len(file):
        if 32768 - place % 32768 < 7:  # no room for a piece's header: padding
            place += 32768 - place % 32768
        _, length, kind = struct.unpack_from("<IHB", file, place)
        whole += file[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


def test_a_server_that_is_not_there_does_not_stop_the_run(settings, monkeypatch, capsys):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert loop.train(config_from({**settings, "track": "mlflow"})).finished
    assert "mlflow failed" in capsys.readouterr().err


def test_all_named_ones_can_be_made():
    names = [name for name in ("tensorboard", "mlflow", "wandb") if _there(name)]
    assert len(named_trackers(",".join(names), print)) == len(names)


def _there(name):
    import importlib.util

    return importlib.util.find_spec(name) is not None


class Noting(Tracker):
    """Keeps the names of its calls; fails in one of them."""

    def __init__(self, fails=""):
        self.calls, self.fails = [], fails

    def _note(self, name):
        self.calls.append(name)
        if name == self.fails:
            raise RuntimeError(f"no {name}")

    def begin(self, run, config, steps_done):
        self._note("begin")

    def log(self, step, values):
        self._note("log")

    def close(self):
        self._note("close")


@pytest.mark.parametrize("fails", ["begin", "log", "close"])
def test_all_that_were_begun_are_closed_whichever_of_them_fails(settings, fails):
    before, failing, after = trackers = [Noting(), Noting(fails), Noting()]
    with pytest.raises(RuntimeError, match=f"no {fails}"):
        loop.train(config_from(settings), trackers)
    for tracker in (before, after):
        assert (tracker.calls[:1], tracker.calls[-1:]) in ((["begin"], ["close"]), ([], []))
    assert before.calls and bool(after.calls) == (fails != "begin")
    assert failing.calls[-1] == ("begin" if fails == "begin" else "close")
