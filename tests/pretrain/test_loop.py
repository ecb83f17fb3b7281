"""Whole pretraining runs on toy sets: they learn, resume bit for bit, and two processes are one."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
import yaml
from torch import nn

from crispseg.errors import UserError
from crispseg.models.backbone_folder import is_backbone_folder, load_backbone, read_backbone
from crispseg.outputs import only_one
from crispseg.pretrain import loop
from crispseg.pretrain.config import config_from, pretrain_config
from crispseg.pretrain.pictures import Pictures
from crispseg.pretrain.sources import open_source
from crispseg.train.log import read_metrics
from crispseg.train.watch import StopRequest
from tests.pretrain import toys

TIMES = ("seconds", "images_per_second")
GENTLE = {"area": [0.6, 1.0], "picks": 0, "erase": 0.0, "mix": 0.0}


class Colours(nn.Module):
    """A teacher: mean colours as a map, and one vector."""

    def forward(self, images):
        return nn.functional.avg_pool2d(images, 16), images.mean((2, 3))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return toys.class_folders(tmp_path_factory.mktemp("sets") / "stripes", count=14)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return toys.shards(tmp_path_factory.mktemp("sets") / "shards")


def both(folders, shards):
    return {"path": str(folders), "aerial": False}, {"path": str(shards), "share": 1, "side": 32}


def test_a_toy_set_is_learnt_by_heart(folders, tmp_path):
    values = toys.settings(tmp_path / "run", {"path": str(folders), "side": 32}, changes=GENTLE, smoothing=0.0)
    values |= {"schedule": {"steps": 60}, "optimizer": {"lr": 0.004}, "batch_size": 12, "score_every": 60}
    result = loop.pretrain(config_from(values))
    records = [r for r in read_metrics(tmp_path / "run" / "metrics.jsonl") if "train/loss" in r]
    assert records[0]["train/loss"] > 0.9 and records[-1]["train/loss"] < 0.25
    assert result.values["scores"]["stripes/knn"] == 1.0 and result.values["scores"]["stripes/linear"] == 1.0
    backbone = load_backbone(tmp_path / "run" / "backbone")
    assert is_backbone_folder(tmp_path / "run" / "backbone") and not backbone.training
    saved = read_backbone(tmp_path / "run" / "backbone")
    assert saved.options["width"] == 8 and saved.options["fusion"] == backbone.config.fusion
    assert saved.info.training_data.startswith("stripes (")
    card = (tmp_path / "run" / "backbone" / "README.md").read_text()
    back = 42 - int(saved.info.training_data.split()[1].strip("("))
    for fact in (
        f"stripes ({42 - back} pictures of 32 px in 3 classes; {back} more kept back for scores)",
        "Recipe: crisp pretrain, classes of stripes; 60 steps of 12 pictures of 32 px; AdamW lr 0.004",
        "seed 0; started from random weights",
        "Licence: that of the pictures it was trained on; fill in",
        "`knn` by the nearest training pictures",
        "## Limits",
    ):
        assert fact in card, fact
    average = torch.load(tmp_path / "run" / "last.pt", weights_only=True)["average"]["average"]
    torch.testing.assert_close(backbone.patch_embed.conv1.conv.weight, average[0], atol=0, rtol=0)


@pytest.fixture(scope="module")
def whole(folders, shards, tmp_path_factory):
    """A run on two sets, with a teacher, that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert loop.pretrain(config_from(taught(folders, shards, out))).finished
    return out


def taught(folders, shards, out):
    teacher = {"build": "tests.pretrain.test_loop:Colours", "scale": 1.0}
    return toys.settings(out, *both(folders, shards), teacher=teacher, sizes=[32, 48], size_shares=[0.5, 0.5])


def test_stopped_and_resumed_it_ends_the_same(folders, shards, tmp_path, whole, monkeypatch):
    out = tmp_path / "run"
    monkeypatch.setattr(loop.Pretrainer, "_asked_to_stop", lambda self: self.done == 5)
    assert not loop.pretrain(config_from(taught(folders, shards, out))).finished
    monkeypatch.undo()
    torch.manual_seed(99)
    with pytest.raises(UserError, match="keeps its config"):
        loop.resume(out, ["optimizer.lr=1"])
    assert loop.resume(out, ["hold=false"]).finished  # where pictures are decoded changes nothing
    with pytest.raises(UserError, match="keeps its config"):
        loop.resume(out, ["schedule.steps=99"])  # finished or not
    ours, theirs = (torch.load(run / "last.pt", weights_only=True) for run in (out, whole))
    for part in ("model", "optimizer", "average", "scores"):
        torch.testing.assert_close(ours[part], theirs[part], rtol=0, atol=0, msg=part)
    records = [
        [{k: v for k, v in r.items() if k not in TIMES} for r in read_metrics(run / "metrics.jsonl")]
        for run in (out, whole)
    ]
    assert records[0] == records[1]
    assert {"train/stripes", "train/shards", "train/teacher"} <= set(records[0][0])
    assert (out / "backbone" / "model.safetensors").read_bytes() == (
        whole / "backbone" / "model.safetensors"
    ).read_bytes()


def test_the_last_line_shows_the_last_score(folders, tmp_path, capsys):
    values = toys.settings(tmp_path / "run", {"path": str(folders), "side": 32}, schedule={"steps": 6})
    scores = loop.pretrain(config_from(values)).values["scores"]
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("step 6/6"))
    assert f"k-NN {100 * scores['stripes/knn']:.2f}" in line


def test_it_starts_from_an_earlier_run_and_says_so(folders, tmp_path, capsys, monkeypatch):
    one = {"path": str(folders), "labels": False, "side": 32}
    loop.pretrain(config_from(toys.settings(tmp_path / "first", one, schedule={"steps": 1})))
    begun = load_backbone(tmp_path / "first" / "backbone").state_dict()
    values = toys.settings(tmp_path / "second", one, schedule={"steps": 2}, optimizer={"lr": 1e-9}, ema=0.0)
    values["model"] = {**values["model"], "weights": str(tmp_path / "first")}
    monkeypatch.setattr(loop.Pretrainer, "_asked_to_stop", lambda self: self.done == 1)
    loop.pretrain(config_from(values))
    monkeypatch.undo()
    assert f"starts from the backbone in {tmp_path / 'first' / 'backbone'} (trained on" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "first")  # the checkpoint has the weights
    assert loop.resume(tmp_path / "second").finished
    ended = load_backbone(tmp_path / "second" / "backbone").state_dict()
    name = "layers.2.blocks.0.mlp.fc1.weight"
    torch.testing.assert_close(ended[name], begun[name], rtol=0, atol=1e-6)
    card = (tmp_path / "second" / "backbone" / "README.md").read_text()
    assert "started from the backbone in" in card and "two views of a picture alike (VICReg), of stripes" in card
    assert "Nothing was scored" in card


def test_a_start_by_a_wrong_name_is_refused(folders, tmp_path):
    values = toys.settings(tmp_path / "run", {"path": str(folders), "side": 32}, schedule={"steps": 1})
    values["model"] = {**values["model"], "weights": "vssd_nan"}
    with pytest.raises(UserError, match="did you mean 'vssd_nano'"):
        loop.pretrain(config_from(values))
    values["model"]["weights"] = "none"
    assert loop.pretrain(config_from(values), quiet=True).finished


def test_a_training_run_is_not_resumed_as_a_pretraining(tmp_path):
    (tmp_path / "config.yaml").write_text("data: {path: x}\n")
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(UserError, match="is no pretraining run; continue it with `crisp train --resume"):
        loop.resume(tmp_path)


def without_labels(folders, shards):
    return {"path": str(folders), "labels": False, "side": 32}, {"path": str(shards), "labels": False, "side": 32}


def train_terms(run):
    """What each set lost at every record: `train/SET` without the head."""
    records = [r for r in read_metrics(run / "metrics.jsonl") if "train/loss" in r]
    return {name: [r[f"train/{name}"] for r in records] for name in ("stripes", "shards")}


def test_pictures_alone_are_learnt_from(folders, shards, tmp_path):
    values = toys.settings(tmp_path / "run", *without_labels(folders, shards))
    values |= {
        "schedule": {"steps": 40},
        "optimizer": {"lr": 0.01},
        "changes": GENTLE,
        "views": {"width": 16},
        "batch_size": 48,
    }
    result = loop.pretrain(config_from(values))
    assert result.values["scores"] == {} and result.values["sets"] == {"stripes": [42, 0], "shards": [16, 0]}
    for lost in train_terms(tmp_path / "run").values():
        assert lost[-1] < 0.75 * lost[0]


@pytest.mark.parametrize("labels", [True, False])
def test_two_processes_are_one(folders, shards, tmp_path, labels):
    sets = [{"side": 32, **one, "labels": labels} for one in both(folders, shards)]
    losses = []
    for name, launcher in (
        ("one", [sys.executable]),
        ("two", [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]),
    ):
        config = tmp_path / f"{name}.yaml"
        values = toys.settings(tmp_path / name, *sets, schedule={"steps": 4}, log_every=1, views={"width": 8})
        config.write_text(yaml.safe_dump(values))
        command = [*launcher, "-m", "crispseg.cli.main", "pretrain", str(config)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
        assert "deprecated" not in done.stderr
        records = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        losses.append([r["train/loss"] for r in records if "train/loss" in r])
    assert len(losses[0]) == 4
    assert losses[0] == pytest.approx(losses[1], rel=0.01)  # Adam turns rounding into small differences


def test_mistakes_get_one_sentence(folders, tmp_path):
    one = {"path": str(folders), "side": 32}
    for values, words in (
        ({"sets": []}, "nothing to learn from"),
        ({"sets": [one, one]}, "two sets are called stripes"),
        ({"sets": [one], "batch_size": 3}, "batch_size 3 cannot be shared out"),
        ({"sets": [one], "sizes": [32, 64], "size_shares": [1]}, "size_shares has 1 numbers for 2 sizes"),
        ({"sets": [one], "teacher": {"build": "nowhere:Net"}}, "there is no teacher nowhere:Net"),
        ({"sets": [one], "teacher": {"build": "math:tau"}}, "math:tau"),
        ({"sets": [{**one, "pth": 1}]}, "did you mean"),
    ):
        with pytest.raises(UserError, match=words):
            loop.pretrain(config_from({**toys.settings(tmp_path / "run"), **values}))
    assert not (tmp_path / "run").exists()


FAULTY = """
import os, sys
from crispseg.cli.main import main
from crispseg.pretrain import sources
first, read = os.getpid(), sources.Files.read
def faulty(self, index):
    if os.getpid() != first:
        {fault}
    return read(self, index)
sources.Files.read = faulty
sys.exit(main(["pretrain", sys.argv[1]]))
"""


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("pass", "p7.png is cut short: its end is missing; copy or download it again"),
        ("os.kill(os.getpid(), 9)", "a process that loads pictures was killed, most likely because memory is short"),
        ("raise MemoryError", "out of memory; take smaller"),
        ("raise ZeroDivisionError", ""),
    ],
)
def test_trouble_in_a_worker_ends_the_run_with_one_sentence(tmp_path, fault, said):
    """The workers hold SIGTERM back: a process that ended with some alive waited for them for ever."""
    data = toys.class_folders(tmp_path / "stripes", count=14)
    whole = (data / "kind1" / "p7.png").read_bytes()
    (data / "kind1" / "p7.png").write_bytes(whole[: len(whole) // 2])
    config = tmp_path / "config.yaml"
    values = toys.settings(tmp_path / "run", {"path": str(data), "side": 32}, hold=False, workers=2)
    config.write_text(yaml.safe_dump(values))
    command = [sys.executable, "-c", FAULTY.format(fault=fault), str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert ("Traceback" in done.stderr) == (not said)
    told = [line for line in done.stderr.splitlines() if line.startswith("crisp: ")]
    assert [said in line for line in told] == [True] * bool(said)


def test_ctrl_c_lets_the_workers_finish_the_step(tmp_path):
    """Sent to the whole group, as terminals do: each worker said that it stops."""
    data = toys.class_folders(tmp_path / "stripes")
    config = tmp_path / "config.yaml"
    values = toys.settings(tmp_path / "run", {"path": str(data), "side": 32}, hold=False, workers=2)
    config.write_text(yaml.safe_dump({**values, "schedule": {"steps": 100_000}}))
    command = [sys.executable, "-m", "crispseg.cli.main", "pretrain", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while "step" not in (line := process.stderr.readline()) or "/100000 " not in line:
        assert line, "it ended"
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 130 and said.count("stopping after this step") == 1
    assert "continue: crisp pretrain --resume" in said and "Traceback" not in said


def test_words_change_a_config(folders):
    words = [f"data={folders}", "model=vssd_tiny", "model.options.fusion=raw", "schedule.steps=7"]
    config = config_from({"schedule": {"epochs": 3}, "model": "vssd_base"}, words)
    assert (config.model.name, config.model.options) == ("vssd_tiny", {"fusion": "raw"})
    assert (config.schedule.steps, config.schedule.epochs, config.schedule.decay) == (7, None, "cosine")
    assert config.sets[0].path == str(folders) and config.optimizer.lr == 1e-3


def test_one_run_at_a_time_and_only_on_what_it_began_with(tmp_path, monkeypatch):
    data, out = toys.class_folders(tmp_path / "stripes"), tmp_path / "run"
    config = config_from(toys.settings(out, {"path": str(data)}, schedule={"steps": 3}))
    monkeypatch.setattr(loop.Pretrainer, "_asked_to_stop", lambda self: self.done == 1)
    loop.pretrain(config, quiet=True)
    with only_one(out, "training"), pytest.raises(UserError, match="another run is training"):
        loop.resume(out)
    with pytest.raises(UserError, match="crisp pretrain --resume"):
        loop.pretrain(config)
    one, other = (data / "kind0" / name for name in ("p0.png", "p1.png"))
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    with pytest.raises(UserError, match=r"not what this run began with: stripes/kind0 has changed"):
        loop.resume(out)
    one.write_bytes(kept)
    assert loop.resume(out, quiet=True).finished


def test_pictures_that_have_moved_are_those_the_run_began_with(tmp_path, monkeypatch):
    """The only set's folder may be called otherwise; several lie in another folder."""
    toys.class_folders(tmp_path / "old" / "stripes")
    toys.shards(tmp_path / "old" / "shards")
    shards, stripes = ({"path": str(tmp_path / "old" / name), "side": 32} for name in ("shards", "stripes"))
    monkeypatch.setattr(loop.Pretrainer, "_asked_to_stop", lambda self: self.done == 1)
    for name, sets in (("one", [shards]), ("both", [shards, stripes])):
        loop.pretrain(config_from(toys.settings(tmp_path / name, *sets, schedule={"steps": 2})), quiet=True)
    monkeypatch.undo()
    (tmp_path / "old").rename(tmp_path / "new")
    assert loop.resume(tmp_path / "both", [f"data={tmp_path / 'new'}"], quiet=True).finished
    (tmp_path / "new" / "shards").rename(tmp_path / "photos")
    with pytest.raises(UserError, match="no folder .*shards to learn from"):
        loop.resume(tmp_path / "one")
    assert loop.resume(tmp_path / "one", [f"data={tmp_path / 'photos'}"], quiet=True).finished


def test_pictures_are_cached_while_a_training_listens_for_signals(tmp_path):
    """Its handler of SIGTERM is inherited by the processes that decode: they ended only by chance."""
    data = toys.class_folders(tmp_path / "stripes")
    with StopRequest().listening() as stop:
        for number in range(4):
            pictures = Pictures(open_source(data, labelled=True, side=32)[0], 32)
            pictures.hold(torch.device("cpu"), tmp_path / f"cache{number}")
    assert not stop and not multiprocessing.active_children()


def test_pictures_in_a_cache_are_those_of_the_files(tmp_path):
    data = toys.class_folders(tmp_path / "stripes")

    def held():
        pictures = Pictures(open_source(data, labelled=True, side=32)[0], 32)
        pictures.hold(torch.device("cpu"), tmp_path / "cache")
        return pictures.held

    before = held()
    assert torch.equal(held(), before)
    for number in range(12):
        shutil.copy(data / "kind1" / f"p{number}.png", data / "kind0")
    assert not torch.equal(held(), before), "the files changed, and no name did"


def test_configs_and_checkpoints_of_wrong_types(tmp_path):
    """Found by the fuzz campaign."""
    for part in ("optimizer: [1]", "schedule: x", "sets: [3]\ndata: x"):
        (tmp_path / "c.yaml").write_text(f"{part}\n")
        with pytest.raises(UserError):
            pretrain_config(tmp_path / "c.yaml")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(yaml.safe_dump(toys.settings(run, {"path": "x"})))
    with pytest.raises(UserError, match="leaves nothing open"):
        loop.resume(run)
