"""What a run leaves behind, and what it says when something is wrong."""

import errno
import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import crispseg
from crispseg.cli.main import main
from crispseg.cli.words import split_words
from crispseg.data.folder import open_folder
from crispseg.errors import UserError
from crispseg.files import write_json
from crispseg.models.backbone_folder import BackboneInfo, save_backbone
from crispseg.models.vssd import create_backbone
from crispseg.train import log as log_room
from crispseg.train import loop
from crispseg.train.checkpoint import load_checkpoint, save_checkpoint
from crispseg.train.config import config_from, train_config
from crispseg.train.finish import Result
from crispseg.train.log import MetricsLog, read_metrics
from crispseg.train.run_folder import new_run_folder
from crispseg.train.setup import build_model, open_data
from crispseg.train.watch import FiniteWatch
from tests.train import tiny


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "run"
    loop.train(config_from(tiny.settings(folder, out, precision="bf16")))
    return out


def test_the_run_folder_is_complete(run, folder):
    names = {path.name for path in run.iterdir()}
    assert {"config.yaml", "environment.json", "protocol.json", "metrics.jsonl", "samples"} <= names
    assert {"last.pt", "best.pt", "best", "result.json"} <= names
    assert not [name for name in names if name.startswith(".")]
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["crop"] == 32 and config["data"]["path"] == str(folder.resolve())
    protocol = json.loads((run / "protocol.json").read_text())
    assert protocol["hash"] in protocol["line"]
    assert json.loads((run / "environment.json").read_text())["packages"]["torch"] == torch.__version__
    (name,) = {path.name.rsplit("-", 1)[0] for path in (run / "samples").iterdir()}
    picture = Image.open(run / "samples" / f"{name}-000020.png")
    assert picture.size == (3 * 40 + 2 * 8, 40)


def test_the_log_has_losses_and_scores(run):
    records = read_metrics(run / "metrics.jsonl")
    losses = {record["step"]: record["train/loss"] for record in records if "train/loss" in record}
    assert list(losses) == [4, 8, 12, 16, 20]
    assert losses[20] < losses[4]
    scores = [record for record in records if "val/mIoU" in record]
    assert [record["step"] for record in scores] == [10, 20]
    assert {"val/mF1", "val/OA", "val/IoU/class_0", "val/F1/class_1"} <= set(scores[0])


def test_events_for_tensorboard(run):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "events"))
    events.Reload()
    assert [event.step for event in events.Scalars("val/mIoU")] == [10, 20]


def test_checkpoints_are_plain_and_the_model_folder_loads(run):
    state = load_checkpoint(run / "best.pt")
    model = crispseg.load(run / "best")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state["model"][name]), name
    result = json.loads((run / "result.json").read_text())
    info = model.info
    assert info.classes == ("class_0", "class_1") and len(info.palette) == 2
    assert len(info.mean) == len(info.std) == 3 and all(s > 0 for s in info.std)
    assert info.scores["mIoU"] == result["best"]["mIoU"] and result["protocol"] == info.scores["protocol"]
    assert "BF@3px" in info.scores and "train split (4 images)" in info.training_data


def test_best_is_the_best_validation(run):
    scores = {r["step"]: r["val/mIoU"] for r in read_metrics(run / "metrics.jsonl") if "val/mIoU" in r}
    state = load_checkpoint(run / "best.pt")
    assert state["step"] == max(scores, key=lambda step: (scores[step], -step))


def test_without_labels_to_validate_on_best_is_the_latest_and_no_score_is_told(tmp_path):
    folder = tiny.make_folder(tmp_path / "data")
    Image.fromarray(np.full((40, 40), 255, np.uint8)).save(folder / "masks" / "scene4.png")
    result = loop.train(config_from(tiny.settings(folder, tmp_path / "run")))
    last, best = (tiny.weights_of(result.out, name) for name in ("last.pt", "best.pt"))
    assert result.values["best_step"] == 20 and all(torch.equal(last[name], best[name]) for name in last)
    assert str(result).count("mIoU -  mF1 -  OA -  BF@3px -") == 2
    assert "- mIoU: not defined" in (result.weights / "README.md").read_text()


def test_every_score_is_told_in_percent():
    scores = {"mIoU": 0.51, "mF1": 0.62, "OA": 0.83, "BF@3px": 0.1977}
    told = str(Result(Path("run"), {"protocol": "p", "steps": 20, "last": scores, "best": scores}))
    assert told.count("mIoU 51.00  mF1 62.00  OA 83.00  BF@3px 19.77") == 2


def test_tuning_starts_from_a_model_folder_even_with_other_classes(run, folder, tmp_path):
    other = tmp_path / "three"
    shutil.copytree(folder, other)
    (other / "classes.csv").write_text("name,id\nground,0\nroof,1\ntree,2\n")
    values = tiny.settings(other, tmp_path / "run", schedule={"steps": 1, "warmup": 0}, optimizer={"lr": 1e-9})
    values["model"] = {**values["model"], "weights": str(run / "best")}
    loop.train(config_from(values))
    old, new = crispseg.load(run / "best").state_dict(), tiny.weights_of(tmp_path / "run")
    name = "backbone.layers.2.blocks.0.mlp.fc1.weight"
    torch.testing.assert_close(new[name], old[name], rtol=1e-5, atol=1e-6)
    assert new["head.tokens.embedding"].shape[0] == 3


def test_with_no_config_at_all(folder, tmp_path, monkeypatch, capsys):
    """Everything is chosen for the machine; only the number of steps is cut short."""
    monkeypatch.chdir(tmp_path)
    config = train_config(None, [f"data={folder}", "schedule.steps=1", "device=cpu"])
    result = loop.train(config)
    assert result.finished and result.out == Path("runs/squares-crisp_nano-1")
    chosen = yaml.safe_load((result.out / "config.yaml").read_text())
    assert chosen["crop"] == 64 and chosen["batch_size"] == 4 and chosen["precision"] == "fp32"
    assert chosen["optimizer"]["lr"] == 6e-4 and chosen["model"]["weights"] == "crisp_nano_aerial"
    assert "starts from crisp_nano_aerial (all classes new)\n" in capsys.readouterr().err


def test_epochs_become_steps(folder, tmp_path):
    """4 training images of 40 x 40 px are six crops of 32 px: an epoch; 5 epochs are 8 steps of 4."""
    values = tiny.settings(folder, tmp_path / "run", schedule={"epochs": 5})
    monkey = loop.train(config_from(values))
    assert monkey.values["steps"] == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": {"path": "nowhere"}}, "no data folder nowhere"),
        ({"data": {"path": ""}}, "no data: give data=FOLDER"),
        ({"loss": {"class_weights": [1, 2, 3]}}, "3 numbers, but there are 2 classes"),
        ({"loss": {"mutual": 0.1}}, "loss.mutual needs a model with soft matching: crisp_nano has none"),
        (
            {
                "loss": {"mutual": 0.1},
                "model": {"name": "crisp_nano", "options": {**tiny.OPTIONS, "matching": "lse", "prototypes": 1}},
            },
            "loss.mutual spreads a class's pixels over its prototypes, and there is one",
        ),
        (
            {"model": {"name": "crisp_nano", "options": {"selectivity": 3.0}}},
            "selectivity is for selective fusion: normalized has none",
        ),
        (
            {"model": {"name": "crisp_nano", "options": {**tiny.OPTIONS, "logit_scale": 200}}},
            r"model\.options\.logit_scale must be from 1 to 100, not 200",
        ),
        ({"batch_size": 3, "accumulate": 2}, "batch_size 3 cannot be shared out"),
        ({"model": {"name": "crisp_nanno"}}, "did you mean 'crisp_nano'"),
        ({"model": {"name": "crisp_nano", "options": {"widht": 8}}}, "did you mean 'width'"),
        ({"model": {"name": "crisp_nano", "weights": "nowhere.pt"}}, "no weight file nowhere.pt"),
        ({"model": {"name": "crisp_nano", "weights": "vssd_nanno"}}, "did you mean 'vssd_nano'"),
    ],
)
def test_wrong_configs(folder, tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        loop.train(config_from({**tiny.settings(folder, tmp_path / "run"), **change}))
    assert not (tmp_path / "run").exists()


def test_three_band_config_on_four_band_data(tmp_path, run, capsys):
    data = tiny.make_folder(tmp_path / "four", bands=4)
    values = tiny.settings(data, tmp_path / "run")
    with pytest.raises(UserError, match=r"data.bands red, green, blue takes 3 bands, but the images of .* have 4"):
        loop.train(config_from(values, ["data.bands=[red, green, blue]"]))
    values = tiny.settings(data, tmp_path / "run", schedule={"steps": 1}, val_every=1)
    values["model"] = {**values["model"], "weights": str(run / "best")}
    assert loop.train(config_from(values)).finished
    said = "(first convolution adapted from red, green, blue to 4 bands)"
    assert f"starts from {run / 'best'} {said}\n" in capsys.readouterr().err


def test_a_prepared_folder_knows_its_bands_better_than_a_config(tmp_path, capsys):
    data = tiny.make_folder(tmp_path / "potsdam")
    infrared = ["near_infrared", "red", "green"]
    write_json(data / "dataset.json", {"dataset": "potsdam", "bands": infrared})
    values = tiny.settings(data, tmp_path / "run", schedule={"steps": 1}, val_every=1)
    assert loop.train(config_from(values, ["data.bands=[red, green, blue]"])).finished
    said = capsys.readouterr().err
    assert said.count("bands are near_infrared, red, green, as dataset.json in") == 1
    assert crispseg.load(tmp_path / "run" / "best").info.bands == tuple(infrared)
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["data"]["bands"] == infrared
    with pytest.raises(UserError, match="data.bands says blue, green, red, but .* says near_infrared, red, green"):
        loop.train(config_from({**values, "out": str(tmp_path / "other")}, ["data.bands=[blue, green, red]"]))
    assert loop.train(config_from({**values, "out": str(tmp_path / "open")})).finished
    assert "as dataset.json" not in capsys.readouterr().err


def test_empty_split(folder, tmp_path):
    rows = (folder / "split.csv").read_text().replace(",val", ",train")
    (tmp_path / "split.csv").write_text(rows)
    values = tiny.settings(folder, tmp_path / "run")
    with pytest.raises(UserError, match="the val split of .* is empty; it has train"):
        loop.train(config_from(values, [f"data.split={tmp_path / 'split.csv'}"]))


def test_output_that_cannot_be_written(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot make the run folder .*: Not a directory; choose another"):
        loop.train(config_from(tiny.settings(folder, tmp_path / "file" / "run")))

    def refuse(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match="cannot make the run folder .*: Read-only file system"):
        loop.train(config_from(tiny.settings(folder, tmp_path / "run")))


def test_a_run_is_not_overwritten(run, folder):
    with pytest.raises(UserError, match=f"{run} holds a run already; continue it with `crisp train --resume {run}`"):
        loop.train(config_from(tiny.settings(folder, run)))
    spaced = run.parent / "a run"
    spaced.mkdir()
    (spaced / "config.yaml").touch()
    with pytest.raises(UserError, match=f"`crisp train --resume '{spaced}'`"):
        new_run_folder(str(spaced), "", "")


def test_a_loss_that_is_no_number_names_the_files(folder, tmp_path, monkeypatch):
    out, note = tmp_path / "run", FiniteWatch.note

    def spoil(watch, step, values, files):
        note(watch, step, values * (math.nan if step == 3 else 1.0), files)

    monkeypatch.setattr(FiniteWatch, "note", spoil)
    with pytest.raises(UserError, match=r"not a finite number at step 3, in the batch of .*scene\d\.png"):
        loop.train(config_from(tiny.settings(folder, out, save_every=1)))
    assert load_checkpoint(out / "last.pt")["step"] == 2


def test_a_loss_that_explodes_is_noticed(folder, tmp_path):
    values = tiny.settings(folder, tmp_path / "run", optimizer={"lr": 1e30, "clip": 0}, save_every=1)
    with pytest.raises(UserError, match=r"not a finite number"):
        loop.train(config_from(values))


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"step": 1})
    write = Path.write_bytes

    def full(self, data):
        write(self, bytes(data)[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match="no space left"):
        save_checkpoint(path, {"step": 2})
    assert load_checkpoint(path)["step"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


def test_a_full_disk_keeps_the_log(tmp_path, monkeypatch):
    log = MetricsLog(tmp_path, 0)
    log.add(1, {"train/loss": 1.0})
    write, calls = os.write, []

    def full(file, data):
        calls.append(data)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[:5])

    monkeypatch.setattr(log_room.os, "write", full)
    with pytest.raises(UserError, match=r"metrics\.jsonl: No space left.*--resume"):
        log.add(2, {"train/loss": 0.5})
    monkeypatch.undo()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "train/loss": 1.0}\n'
    log.add(2, {"train/loss": float("nan")})
    log.close()
    assert read_metrics(tmp_path / "metrics.jsonl")[1] == {"step": 2, "train/loss": None}


def test_a_torn_last_line_and_later_records_are_dropped(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 5}\n{"step": 9}\n{"step": 12, "tr')
    MetricsLog(tmp_path, 7).close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 5}\n'


def test_the_commands_words(tmp_path):
    (tmp_path / "a.yaml").touch()
    assert split_words([f"{tmp_path}/a.yaml", "seed=1"]) == (f"{tmp_path}/a.yaml", ["seed=1"])
    assert split_words([str(tmp_path), "seed=1"]) == (None, [f"data={tmp_path}", "seed=1"])
    assert split_words(["seed=1"]) == (None, ["seed=1"])


def test_a_backbone_is_started_from_and_named(folder, tmp_path, capsys):
    backbone = create_backbone("vssd_nano", **{k: tiny.OPTIONS[k] for k in ("width", "depths", "heads", "state")})
    save_backbone(backbone, tmp_path / "backbone", "vssd_nano", BackboneInfo(training_data="photos"))
    values = tiny.settings(folder, tmp_path / "run", schedule={"steps": 1}, val_every=1)
    values["model"]["weights"] = str(tmp_path / "backbone")
    model = build_model(config_from(values), open_data(config_from(values)))
    for name, tensor in backbone.state_dict().items():
        assert torch.equal(model.backbone.state_dict()[name], tensor)
    assert loop.train(config_from(values)).finished
    said = f"the backbone in {tmp_path / 'backbone'} (trained on photos)"
    assert f"starts from {said}" in capsys.readouterr().err
    card = (tmp_path / "run" / "best" / "README.md").read_text()
    assert f"- Training started from: {said}" in card
    values = tiny.settings(folder, tmp_path / "scratch", schedule={"steps": 1}, val_every=1)
    assert loop.train(config_from(values)).finished
    assert "starts from random weights" in capsys.readouterr().err
    assert yaml.safe_load((tmp_path / "scratch" / "config.yaml").read_text())["model"]["weights"] == "none"


def test_a_resumed_run_knows_what_it_started_from(folder, tmp_path, monkeypatch):
    backbone = create_backbone("vssd_nano", **{k: tiny.OPTIONS[k] for k in ("width", "depths", "heads", "state")})
    save_backbone(backbone, tmp_path / "backbone", "vssd_nano", BackboneInfo(training_data="photos"))
    values = tiny.settings(folder, tmp_path / "run", schedule={"steps": 2}, val_every=2)
    values["model"]["weights"] = str(tmp_path / "backbone")
    monkeypatch.setattr(loop.Trainer, "asked_to_stop", lambda self: self.done == 1)
    loop.train(config_from(values))
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "backbone")  # the checkpoint has the weights
    assert loop.resume(tmp_path / "run").finished
    assert "(trained on photos)" in crispseg.load(tmp_path / "run" / "best").info.started_from


def test_two_sets_train_together(folder, tmp_path, capsys):
    """The second knows one class only: its background may be either of the first's."""
    other = tiny.make_folder(tmp_path / "other")
    (other / "classes.csv").write_text("name,id\nbackground,0\nsomething,1\n")
    meaning = {"background": ["class_0", "class_1"], "something": "class_1"}
    also = [{"path": str(other), "meaning": meaning, "share": 0.5, "scale": [0.8, 1.2]}]
    values = tiny.settings(folder, tmp_path / "run", schedule={"steps": 4}, val_every=4)
    values["data"]["also"] = also
    assert loop.train(config_from(values)).finished
    said = "4 training (and 4 of other along with them) and 1 validation images"
    assert said in capsys.readouterr().err
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert written["loss"]["groups"] == [[0, 1]] and written["data"]["also"][0]["path"] == str(other)
    card = crispseg.load(tmp_path / "run" / "best").info
    assert card.training_data.count("train split") == 2 and len(card.classes) == 2
    assert loop.resume(tmp_path / "run").finished
    with pytest.raises(UserError, match="class_weights does not go with"):
        config_from({**values, "loss": {"class_weights": [1, 1]}})


def test_the_end_is_scored_on_the_protocols_split_if_asked(tmp_path):
    folder = tiny.make_folder(tmp_path / "squares")
    split = folder / "split.csv"
    split.write_text(split.read_text().replace("scene3,train", "scene3,test"))
    values = tiny.settings(folder, tmp_path / "run", schedule={"steps": 2}, score="protocol")
    result = loop.train(config_from(values)).values
    assert "test (1 tile)" in result["protocol"]
    model, opened = crispseg.load(tmp_path / "run" / "best"), open_folder(folder)
    (record,) = opened.records("test")
    image, truth = opened.read_image(record), opened.read_mask(record, "full")
    mean, std = (np.array(x) for x in (model.info.mean, model.info.std))
    with torch.no_grad():
        x = torch.from_numpy(((image - mean) / std).transpose(2, 0, 1)[None]).float()
        found = model.eval()(x)[0].argmax(0).numpy()
    assert result["best"]["OA"] == pytest.approx((found == truth)[truth != 255].mean(), abs=5e-3)


def test_cards_remember_the_ground(folder, tmp_path):
    """Pixel size, bands and the range of sizes that training showed, from GeoTIFFs themselves or as told."""
    rasterio = pytest.importorskip("rasterio")
    root = tiny.make_folder(tmp_path / "tifs", count=3)
    for path in sorted((root / "images").glob("*.png")):
        pixels = np.array(Image.open(path)).transpose(2, 0, 1)
        place = rasterio.transform.from_origin(400_000, 5_000_000, 0.25, 0.25)
        profile = {"driver": "GTiff", "count": 3, "dtype": "uint8", "height": 40, "width": 40, "photometric": "RGB"}
        with rasterio.open(path.with_suffix(".tif"), "w", crs="EPSG:32632", transform=place, **profile) as file:
            file.write(pixels)
        path.unlink()
    config = config_from(tiny.settings(root, tmp_path / "run", augment={"scale": [0.5, 2.0]}))
    info = build_model(config, open_data(config)).info
    assert info.resolution == pytest.approx(0.25) and info.resolutions == pytest.approx((0.125, 0.5))
    assert info.bands == ("red", "green", "blue")
    told = config_from(tiny.settings(folder, tmp_path / "run"), ["data.resolution=0.3"])
    assert build_model(told, open_data(told)).info.resolutions == pytest.approx((0.15, 0.6))
    silent = config_from(tiny.settings(folder, tmp_path / "run"))
    info = build_model(silent, open_data(silent)).info
    assert info.resolution is None and info.resolutions is None and info.bands == ()


def test_a_crop_of_nothing_but_padding_is_refused(folder, tmp_path):
    with pytest.raises(UserError, match=r"crop 100000 is 2500 times as long as the longest training image \(40 px\)"):
        loop.train(config_from(tiny.settings(folder, tmp_path / "run", crop=100_000)))


def test_an_interrupted_run_can_be_loaded_scored_and_used(folder, tmp_path, monkeypatch, capsys):
    """best/ is there from the first validation on, and a run's name stands for it in every verb."""
    out = tmp_path / "squares-run"
    monkeypatch.setattr(loop.Trainer, "asked_to_stop", lambda self: self.done == 2)
    loop.train(config_from(tiny.settings(folder, out)))
    with pytest.raises(UserError, match="has no best/ yet: it comes with the first validation"):
        crispseg.load(out)
    monkeypatch.setattr(loop.Trainer, "asked_to_stop", lambda self: self.done == 12)
    assert not loop.resume(out).finished
    model = crispseg.load(out)
    assert model.info.dtype == "uint8" and 0 <= model.info.scores["mIoU"] <= 1
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    image = next((folder / "images").iterdir())
    assert main(["predict", str(image), "-o", "map.tif", "-m", str(out), "--quiet"]) == 0
    assert main(["eval", str(out), str(folder), "--quiet", "--json", "--device", "cpu"]) == 0
    assert [path.name for path in (tmp_path / "reports").iterdir()] == ["squares-run-1"]
    assert main(["info", str(out), "--size", "64"]) == 0


def test_a_warm_up_that_takes_the_whole_training_is_told(folder, tmp_path, capsys):
    """As `crisp train potsdam schedule.steps=500` has it, whose config warms up for 1500."""
    said = "warning: schedule.warmup is 9 steps of 2 in all, so the learning rate never gets beyond 20 % of its peak"
    for warmup, told in ((9, True), (1, False)):
        values = tiny.settings(folder, tmp_path / f"run{warmup}", schedule={"steps": 2, "warmup": warmup})
        loop.train(config_from(values), quiet=True)
        assert (said in capsys.readouterr().err) is told


def test_settings_without_effect_are_told(folder, tmp_path, capsys):
    values = tiny.settings(folder, tmp_path / "run", schedule={"steps": 1}, optimizer={"lr": 1e-3, "gate_factor": 9})
    values["model"]["options"] = {**tiny.OPTIONS, "dco": False}
    loop.train(config_from(values), quiet=True)
    assert "warning: without effect on this network: optimizer.gate_factor (no gates)" in capsys.readouterr().err


def test_a_runs_score_is_that_of_evaluation_beside_gaps_too(folder, tmp_path):
    """Images whose file says that 0 is no data: a collar, and single bands that hold it by chance."""
    rasterio = pytest.importorskip("rasterio")
    data = shutil.copytree(folder, tmp_path / "data")
    draws = np.random.default_rng(0)
    for path in sorted((data / "images").iterdir()):
        pixels = np.asarray(Image.open(path)).copy()
        pixels[:9] = 0
        pixels[draws.random(pixels.shape) < 0.2] = 0
        facts = {"driver": "GTiff", "height": 40, "width": 40, "count": 3, "dtype": "uint8", "nodata": 0}
        with pytest.warns(), rasterio.open(path.with_suffix(".tif"), "w", **facts) as file:
            file.write(np.moveaxis(pixels, 2, 0))
        path.unlink()
    out = tmp_path / "run"
    loop.train(config_from(tiny.settings(data, out)), quiet=True)
    model = crispseg.load(out)
    found = crispseg.evaluate(model, data, split="val", precision="float32")
    assert found.scores.miou == pytest.approx(model.info.scores["mIoU"], abs=1e-3)
    assert model.info.temperature == load_checkpoint(out / "best.pt")["best"]["temperature"] != 1
