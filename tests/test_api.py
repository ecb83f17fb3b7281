"""The functions at the front door do what the commands do."""

import dataclasses
import inspect
import pickle

import numpy as np
import pytest
import torch

import crispseg
from crispseg import api
from crispseg.data import open_folder
from crispseg.export.run import export
from crispseg.train.config import train_config
from crispseg.train.track import Tracker
from tests.train import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.make_folder(tmp_path_factory.mktemp("api") / "squares")


SMALL = {"model": {"name": "crisp_nano", "options": tiny.OPTIONS}, "crop": 32, "batch_size": 2, "workers": 0}


class Notes(Tracker):
    def __init__(self):
        self.told = []

    def begin(self, run, config, steps_done):
        self.told.append(("begin", run.name, config["seed"], steps_done))

    def log(self, step, values):
        self.told.append(("log", step, sorted(values)))

    def finish(self, result):
        self.told.append(("finish", result["steps"]))

    def close(self):
        self.told.append(("close",))


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    notes = Notes()
    out = tmp_path_factory.mktemp("runs") / "a"
    settings = {**SMALL, "schedule.steps": 4, "schedule": {"warmup": 1}, "seed": 3, "out": str(out), "device": "cpu"}
    result = crispseg.train(str(folder), trackers=[notes], **settings)
    return result, notes.told


def test_train(run, folder):
    result, told = run
    assert result.finished and 0 <= result.scores["mIoU"] <= 1
    config = train_config(result.out / "config.yaml")
    assert (config.schedule.steps, config.schedule.warmup, config.seed) == (4, 1, 3)
    assert config.data.path == str(folder)
    assert told[0] == ("begin", "a", 3, 0) and told[-2:] == [("finish", 4), ("close",)]
    assert any(kind == "log" and "val/mIoU" in rest[1] for kind, *rest in told)
    assert isinstance(crispseg.load(result.weights), torch.nn.Module)


def test_what_a_tracker_raises_ends_the_run(folder, tmp_path):
    class Stop(Exception):
        pass

    class Impatient(Notes):
        def log(self, step, values):
            raise Stop

    tracker = Impatient()
    with pytest.raises(Stop):
        crispseg.train(
            folder, trackers=[tracker], **SMALL, **{"schedule.steps": 50, "log_every": 1}, out=str(tmp_path / "r")
        )
    assert tracker.told[-1] == ("close",)


def test_a_stopped_run_is_resumed(folder, tmp_path):
    stopped = crispseg.train(folder, **SMALL, schedule={"steps": 6}, max_minutes=1e-9, out=str(tmp_path / "r"))
    assert not stopped.finished and stopped.scores == {}
    with pytest.raises(crispseg.UserError, match="leave the config out"):
        crispseg.train("dubai", resume=stopped.out)
    notes = Notes()
    resumed = crispseg.train(resume=stopped.out, max_minutes="null", trackers=[notes])
    assert resumed.finished and resumed.out == stopped.out
    assert notes.told[0] == ("begin", "r", 0, 1), "it went on after the one step that was made"


def test_evaluate(run, folder, tmp_path):
    evaluation = crispseg.evaluate(run[0].out, folder, out=tmp_path / "report")
    assert (tmp_path / "report" / "report.html").is_file()
    again = crispseg.evaluate(crispseg.load(run[0].weights), open_folder(folder), device="cpu")
    assert evaluation.headline == again.headline
    with pytest.raises(crispseg.UserError, match="not an empty folder"):
        crispseg.evaluate(run[0].out, folder, out=tmp_path / "report")


def test_predict(run, folder, tmp_path):
    scene = folder / "images" / "scene0.png"
    (result,) = crispseg.predict(scene, tmp_path / "map.tif", run[0].weights, polygons="gpkg", tile=32)
    assert {path.rpartition("/")[2] for path in result.files} >= {"map.gpkg", "map.tif"}
    import rasterio

    with rasterio.open(tmp_path / "map.tif") as made:
        model = crispseg.load(run[0].weights)
        assert np.array_equal(made.read(1), crispseg.segment(str(scene), model, tile=32))
    with pytest.raises(crispseg.UserError, match="there already"):
        crispseg.predict([scene], tmp_path / "map.tif", run[0].weights)
    with pytest.raises(crispseg.UserError, match="shape the polygons"):
        crispseg.predict(scene, tmp_path / "b.tif", run[0].weights, simplify=1)


def test_without_a_model_or_a_watcher_predict_says_what_it_does(run, folder, tmp_path, monkeypatch):
    """The default model's name, and whatever else the command would say, as Python's warnings."""
    mine = crispseg.load(run[0].weights)
    mine.info = dataclasses.replace(mine.info, resolutions=(1.0, 2.0))
    monkeypatch.setattr("crispseg.predict.default.load", lambda name: mine)
    with pytest.warns(UserWarning) as told:
        crispseg.predict(folder / "images" / "scene0.png", tmp_path / "map.tif", tile=32, pixel_size=0.5)
    said = [str(warning.message) for warning in told]
    assert said[0].startswith("no model given: using crisp_nano_aerial")
    assert any("it is resampled to 1 m" in line for line in said)
    with pytest.warns(UserWarning, match="the map will have none"):
        crispseg.predict(folder / "images" / "scene0.png", tmp_path / "again.tif", mine, tile=32)


@pytest.mark.parametrize("name", ["train", "evaluate", "predict", "export"])
def test_rooms_are_called_like_their_functions(name):
    room = getattr(crispseg, name)
    function = export if name == "export" else getattr(api, name)
    assert inspect.ismodule(room) and inspect.signature(room) == inspect.signature(function)
    assert room.__doc__ and "Returns:" in function.__doc__
    documented = function.__doc__.partition("Args:")[2]
    for parameter in inspect.signature(function).parameters:
        assert f"        {parameter}: " in documented, f"{name}: {parameter} is not explained"
    assert pickle.loads(pickle.dumps(function)) is function


def test_numbers_may_be_numpys_and_names_paths(tmp_path):
    with pytest.raises(crispseg.UserError, match="nowhere"):
        names = (tmp_path / name for name in ("a.tif", "b.tif"))
        options = {"tile": np.int64(512), "pixel_size": np.float32(0.3), "exact": np.bool_(False), "bands": (1, "nir")}
        crispseg.predict(names, tmp_path, tmp_path / "nowhere", polygons=tmp_path / "all.gpkg", **options)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: crispseg.train("potsdamm"), "did you mean 'potsdam'"),
        (lambda: crispseg.train(data="x", optimiser={"lr": 1}), "unknown config key 'optimiser'"),
        (lambda: crispseg.train("no/such/folder"), "no folder no/such/folder"),
        (lambda: crispseg.evaluate("nowhere", "x"), "nowhere"),
        (lambda: crispseg.predict("x.tif", "y.tif", "nowhere"), "nowhere"),
        (lambda: crispseg.predict([], "maps"), "scenes is an empty list: name at least one"),
        (lambda: crispseg.predict("x.tif", "y.tif", tile="512"), "tile must be a whole number, not '512'"),
        (lambda: crispseg.predict(5, "y.tif"), "scenes must be a path or a list of paths, not 5"),
        (
            lambda: crispseg.predict("x.tif", "y.tif", bands="123"),
            "bands must be a list of whole numbers and text, not '123'",
        ),
        (lambda: crispseg.predict("x.tif", "y.tif", confidence="no"), "confidence must be true or false, not 'no'"),
        (lambda: crispseg.evaluate("nowhere", 5), "data must be Folder or a path, not 5"),
        (lambda: crispseg.evaluate("nowhere", "x", scales=("1",)), r"scales must be a list of numbers, not \('1',\)"),
        (lambda: crispseg.train(resume=5), "resume must be a path, not 5"),
        (lambda: crispseg.predict(np.zeros((9, 9, 3)), "y.tif"), "scenes must be paths, not ndarray; crispseg.segment"),
        (lambda: crispseg.segment(np.zeros((3, 8, 9))), r"takes 3; an array is \(height, width, bands\)"),
        (lambda: crispseg.load("crisp_nano_aerial", device="gpu"), "device 'gpu' cannot be used here"),
        (lambda: crispseg.load("crisp_nano_aerial", device="vulkan"), r"cannot be used here \(.{,99}\); try cpu$"),
        (lambda: crispseg.register_network(5, torch.nn.Identity), "name must be text, not 5"),
        (lambda: crispseg.register_network("x", torch.nn.Identity, multiple="8"), "multiple must be a whole number"),
        (lambda: crispseg.register_head(None, torch.nn.Identity), "name must be text, not None"),
        (lambda: crispseg.train(data="x", steps=5), "unknown config key 'steps'; did you mean 'schedule.steps'?"),
        (lambda: crispseg.train("x", trackers=[len]), "an object of a subclass of Tracker, not <built-in"),
        (lambda: crispseg.train("x", trackers=[Notes]), "an object of a subclass of Tracker, not <class"),
        (lambda: crispseg.train("x", trackers=5), "trackers must be a list of Trackers, not 5"),
        (lambda: crispseg.export("nowhere", 5), "path must be text or a path, not 5"),
        (lambda: crispseg.export("nowhere", "x.onnx", say=5), "say must be Say, not 5"),
        (lambda: crispseg.segment("x.tif", pixel_size="0.3"), "pixel_size must be a number, not '0.3'"),
        (lambda: crispseg.segment("x.tif", tile=512.0), "tile must be a whole number, not 512.0"),
        (lambda: crispseg.create_model(None), "name must be text, not None"),
        (lambda: crispseg.create_model("crisp_nano", "6"), "num_classes must be a whole number, not '6'"),
        (lambda: crispseg.create_model("crisp_nano", 6, 3.0), "in_channels must be a whole number, not 3.0"),
        (lambda: crispseg.create_backbone("vssd_nano", "3"), "in_channels must be a whole number, not '3'"),
        (lambda: crispseg.create_backbone("vssd_nano", 0), "in_channels must be from 1 to 65536, not 0"),
        (lambda: crispseg.list_models(3), "pattern must be text, not 3"),
    ],
)
def test_mistakes(call, said):
    with pytest.raises(crispseg.UserError, match=said):
        call()
