"""A run that was interrupted, in whatever way, ends with the weights of one that was not."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml
from PIL import Image

from crispseg.data.folder import open_folder
from crispseg.errors import UserError
from crispseg.evaluate.opening import open_data, open_model
from crispseg.files import write_json
from crispseg.train import loop, run_folder
from crispseg.train.config import config_from
from crispseg.train.data_record import trained_on
from crispseg.train.log import read_metrics
from tests.train import tiny

# all that a checkpoint has to hold is in use
MORE = {"ema": 0.9, "accumulate": 2, "optimizer": {"lr": 0.003, "lookahead": 3}}
TIMES = ("seconds", "images_per_second")


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    """The run that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    result = loop.train(config_from(tiny.settings(folder, out, **MORE)))
    assert result.finished
    return out


def assert_same_run(out, whole):
    for name in ("last.pt", "best.pt"):
        ours, theirs = (torch.load(run / name, weights_only=True) for run in (out, whole))
        assert ours["step"] == theirs["step"] and ours["best"] == theirs["best"]
        for part in ("model", "optimizer", "average", "lookahead"):
            torch.testing.assert_close(ours[part], theirs[part], rtol=0, atol=0, msg=f"{name} {part}")
    records = [
        [{k: v for k, v in record.items() if k not in TIMES} for record in read_metrics(run / "metrics.jsonl")]
        for run in (out, whole)
    ]
    assert records[0] == records[1]
    ours, theirs = (json.loads((run / "result.json").read_text()) for run in (out, whole))
    assert ours["last"] == theirs["last"] and ours["best"] == theirs["best"]


def start(folder, out, tmp_path, before="", workers=0):
    """A training process of its own, leading its own group; `before` is Python to run first."""
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(tiny.settings(folder, out, workers=workers, **MORE)))
    # after its fourth step it takes its time, so that it can be caught there
    code = f"""
import sys, time, argparse, torch
torch.set_num_threads(1)
{before}
from crispseg.cli import train
from crispseg.train.log import MetricsLog
add = MetricsLog.add
def slow(self, step, values):
    add(self, step, values)
    time.sleep(0.5)
MetricsLog.add = slow
sys.exit(train.run(argparse.Namespace(words=[sys.argv[1]], resume=None)))
"""
    command = [sys.executable, "-c", code, str(config)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for_step(out, step):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if any(record["step"] >= step for record in read_metrics(out / "metrics.jsonl")):
            return
        time.sleep(0.01)
    raise AssertionError("the run did not get that far")


def test_stopped_at_step_seven(folder, tmp_path, whole, monkeypatch, capsys):
    monkeypatch.setattr(loop.Trainer, "asked_to_stop", lambda self: self.done == 7)
    first = loop.train(config_from(tiny.settings(folder, tmp_path / "run", **MORE)))
    assert not first.finished
    assert torch.load(tmp_path / "run" / "last.pt", weights_only=True)["step"] == 7
    monkeypatch.undo()
    torch.manual_seed(99)  # nothing may depend on where the random numbers stood
    assert loop.resume(tmp_path / "run", ["log_every=4"]).finished
    assert "going on after step 7 of 20" in capsys.readouterr().err
    assert_same_run(tmp_path / "run", whole)


def test_killed_in_the_middle(folder, tmp_path, whole):
    out = tmp_path / "run"
    process = start(folder, out, tmp_path)
    wait_for_step(out, 8)
    process.kill()
    process.wait()
    state = torch.load(out / "last.pt", weights_only=True)
    assert state["step"] in (5, 10, 15, 20)
    assert loop.resume(out).finished
    assert_same_run(out, whole)


def test_killed_between_write_and_rename(folder, tmp_path, whole):
    out = tmp_path / "run"
    die = """
import os, signal
rename, count = os.replace, [0]
def replace(source, target):
    count[0] += str(target).endswith("last.pt")
    if str(target).endswith("last.pt") and count[0] == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target)
os.replace = replace
"""
    assert start(folder, out, tmp_path, die).wait() == -signal.SIGKILL
    assert list(out.glob(".last.pt.*.part"))
    assert torch.load(out / "last.pt", weights_only=True)["step"] == 5
    assert loop.resume(out).finished
    assert not list(out.glob(".*"))
    assert_same_run(out, whole)


def test_resumed_before_the_first_checkpoint(folder, tmp_path, whole, monkeypatch):
    out = tmp_path / "run"
    monkeypatch.setattr(loop.Trainer, "asked_to_stop", lambda self: self.done == 2)
    loop.train(config_from(tiny.settings(folder, out, **MORE)))
    monkeypatch.undo()
    (out / "last.pt").unlink()
    assert loop.resume(out).finished
    assert_same_run(out, whole)


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGTERM, 0), (signal.SIGINT, 2)])
def test_signals_finish_the_step_save_and_say_how_to_go_on(folder, tmp_path, whole, number, workers):
    """Sent to the whole group, as terminals and batch systems do: the loader's workers must survive it."""
    out = tmp_path / "run"
    process = start(folder, out, tmp_path, workers=workers)
    wait_for_step(out, 4)
    os.killpg(process.pid, number)
    _, said = process.communicate()
    assert "Traceback" not in said and said.count("stopping after this step") == 1
    assert process.returncode == 128 + number
    step = torch.load(out / "last.pt", weights_only=True)["step"]
    assert f"stopped after step {step} of 20; continue: crisp train --resume {out}" in said
    assert loop.resume(out).finished
    assert_same_run(out, whole)


def test_runs_left_side_by_side_go_on_side_by_side(folder, tmp_path, whole, monkeypatch):
    outs = [tmp_path / name for name in ("same", "other")]
    losses = ({}, {"loss": {"orth": 0.0}})
    configs = [config_from(tiny.settings(folder, out, **MORE, **loss)) for out, loss in zip(outs, losses, strict=True)]
    monkeypatch.setattr(loop.Trainer, "asked_to_stop", lambda self: self.done == 7)
    assert not any(result.finished for result in loop.train_together(configs))
    monkeypatch.undo()
    assert [result.out for result in loop.resume_together(outs) if result.finished] == outs
    assert_same_run(outs[0], whole)
    assert len(loop.resume_together(outs)) == 2  # nothing to do


def test_runs_left_at_different_steps_go_on_alone(folder, tmp_path, monkeypatch):
    outs = [tmp_path / "one", tmp_path / "other"]
    for out, last in zip(outs, (3, 7), strict=True):
        monkeypatch.setattr(loop.Trainer, "asked_to_stop", lambda self, last=last: self.done == last)
        loop.train(config_from(tiny.settings(folder, out, **MORE)))
    monkeypatch.undo()
    with pytest.raises(UserError, match="only from the same step"):
        loop.resume_together(outs)
    assert all(loop.resume(out).finished for out in outs)


def test_the_time_limit_stops_a_run(folder, tmp_path):
    out = tmp_path / "run"
    result = loop.train(config_from(tiny.settings(folder, out, max_minutes=1e-9)))
    assert not result.finished and result.signal == 0
    assert torch.load(out / "last.pt", weights_only=True)["step"] == 1


def test_a_finished_run_is_not_run_again(whole):
    before = (whole / "last.pt").stat().st_mtime_ns
    assert loop.resume(whole).finished
    with pytest.raises(UserError, match=r"keeps its config.*schedule\.steps=99.*model\.weights="):
        loop.resume(whole, ["schedule.steps=99"])
    assert (whole / "last.pt").stat().st_mtime_ns == before


def test_what_resume_refuses(folder, tmp_path, whole, monkeypatch):
    with pytest.raises(UserError, match="holds no run to resume"):
        loop.resume(tmp_path)
    pretraining = tmp_path / "pretraining"
    pretraining.mkdir()
    (pretraining / "config.yaml").write_text("sets: [{path: photos}]\n")
    with pytest.raises(UserError, match="is a pretraining run; continue it with `crisp pretrain --resume"):
        loop.resume(pretraining)
    (pretraining / "result.json").write_text('{"scores": {}}')
    with pytest.raises(UserError, match=r"is a pretraining run; it is finished, and `crisp train FOLDER"):
        loop.resume(pretraining)
    monkeypatch.setattr(loop.Trainer, "asked_to_stop", lambda self: self.done == 2)
    out = tmp_path / "run"
    loop.train(config_from(tiny.settings(folder, out)))
    with pytest.raises(UserError, match=r"keeps its config.*optimizer\.lr=1"):
        loop.resume(out, ["optimizer.lr=1"])
    other = tiny.make_folder(tmp_path / "more" / "squares", count=6)
    with pytest.raises(UserError, match="other images or classes"):
        loop.resume(out, [f"data={other}"])
    (out / "last.pt").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"last\.pt is"):
        loop.resume(out)


def test_a_run_goes_on_with_the_split_it_began_with(tmp_path, monkeypatch):
    """An automatic split of today's version may differ from that of the version that began the run."""
    data = tiny.make_folder(tmp_path / "data")
    (data / "split.csv").unlink()
    monkeypatch.setattr(loop.Trainer, "asked_to_stop", lambda self: self.done == 2)
    out = tmp_path / "run"
    loop.train(config_from(tiny.settings(data, out)))
    monkeypatch.undo()
    before = json.loads((out / "protocol.json").read_text())
    swapped = {"train": before["val"], "val": before["train"]}
    monkeypatch.setattr(
        "crispseg.data.folder.blocked_split",
        lambda sizes, *_: {name: kind for kind, names in swapped.items() for name in names},
    )
    assert loop.resume(out).finished
    opened = open_data(str(data), [open_model(str(out))])
    assert opened.protocol.hash == before["hash"]


def test_moved_data_keep_the_images_that_their_split_leaves_out(tmp_path, monkeypatch):
    data = tiny.make_folder(tmp_path / "data")
    table = (data / "split.csv").read_text()
    (data / "split.csv").write_text(table.replace("scene0,train", "scene0,unused"))
    monkeypatch.setattr(loop.Trainer, "asked_to_stop", lambda self: self.done == 2)
    loop.train(config_from(tiny.settings(data, tmp_path / "run")))
    monkeypatch.undo()
    moved = data.rename(tmp_path / "elsewhere")
    assert loop.resume(tmp_path / "run", [f"data={moved}"]).finished


def test_a_bad_mask_stops_a_run_before_its_first_step(tmp_path):
    data = tiny.make_folder(tmp_path / "data")
    (data / "classes.csv").write_text("name,id\ndark,0\nbright,1\n")
    Image.new("L", (40, 40), 7).save(data / "masks" / "scene4.png")  # it validates
    with pytest.raises(UserError, match=r"scene4\.png: class id 7 is out of range"):
        loop.train(config_from(tiny.settings(data, tmp_path / "run")))
    assert not (tmp_path / "run").exists()


def test_a_run_is_trained_by_one_process_at_a_time(folder, tmp_path, monkeypatch):
    """A second trainer would write over the log and the checkpoints of the first."""
    out = tmp_path / "run"
    refused = []

    def meddle(self):
        if self.done == 7:
            with pytest.raises(UserError, match="another run is training"):
                loop.resume(out)
            refused.append(self.done)
        return False

    monkeypatch.setattr(loop.Trainer, "asked_to_stop", meddle)
    assert loop.train(config_from(tiny.settings(folder, out))).finished and refused == [7]
    assert [record["step"] for record in read_metrics(out / "metrics.jsonl") if "lr" in record] == [4, 8, 12, 16, 20]
    assert not (out / ".lock").exists()


def test_changed_pixels_and_labels_are_noticed(folder, tmp_path, monkeypatch):
    """Of equal time; a copy elsewhere is the same data."""
    copy, out = tmp_path / "data", tmp_path / "run"
    shutil.copytree(folder, copy)
    monkeypatch.setattr(loop.Trainer, "asked_to_stop", lambda self: self.done == 2)
    assert not loop.train(config_from(tiny.settings(copy, out))).finished
    monkeypatch.undo()
    moved = tmp_path / "elsewhere" / "with another name"
    moved.parent.mkdir()
    copy.rename(moved)
    mask = sorted((moved / "masks").iterdir())[0]
    whole, about = mask.read_bytes(), mask.stat()
    Image.open(mask).point(lambda v: v ^ 1 if v < 2 else v).save(mask)
    os.utime(mask, ns=(about.st_atime_ns, about.st_mtime_ns))
    with pytest.raises(UserError, match=rf"{mask.stem} \(full labels\) has changed.*data.json to go on"):
        loop.resume(out, [f"data={moved}"])
    mask.write_bytes(whole)
    assert loop.resume(out, [f"data={moved}"]).finished
    protocol = json.loads((out / "protocol.json").read_text())
    assert protocol["dataset"] == "data"
    assert json.loads((out / "result.json").read_text())["protocol"].startswith(f"data/own2 #{protocol['hash']}: val")


def test_a_run_begun_with_a_path_through_dots_goes_on(tmp_path, monkeypatch):
    folder = tiny.make_folder(tmp_path / "squares")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(loop.Trainer, "asked_to_stop", lambda self: self.done == 1)
    config = config_from({**tiny.settings(folder, tmp_path / "run"), "data": {"path": "../squares"}})
    assert not loop.train(config, quiet=True).finished
    monkeypatch.undo()
    assert "missing" not in (tmp_path / "run" / "data.json").read_text()
    assert loop.resume(tmp_path / "run", quiet=True).finished


def test_changed_pixels_of_a_set_that_trains_along_are_noticed(folder, tmp_path, monkeypatch):
    other, out = tiny.make_folder(tmp_path / "other", size=48), tmp_path / "run"
    values = tiny.settings(folder, out)
    values["data"]["also"] = [{"path": str(other)}]
    monkeypatch.setattr(loop.Trainer, "asked_to_stop", lambda self: self.done == 2)
    assert not loop.train(config_from(values)).finished
    monkeypatch.undo()
    assert trained_on(out, open_folder(other).records("train")) == [f"scene{i}" for i in range(4)]
    assert not trained_on(out, open_folder(other).records("val"))
    image = other / "images" / "scene0.png"
    whole = image.read_bytes()
    Image.open(image).point(lambda v: 255 - v).save(image)
    with pytest.raises(UserError, match="also/1/scene0 has changed"):
        loop.resume(out)
    record = json.loads((out / "data.json").read_text())["files"]
    write_json(out / "data.json", {"files": {k: v for k, v in record.items() if not k.startswith("also/")}})
    image.write_bytes(whole)
    assert loop.resume(out).finished  # begun by a version that did not note them


def test_a_config_that_leaves_choices_open(tmp_path, monkeypatch):
    folder = tiny.make_folder(tmp_path / "data")
    monkeypatch.setattr(loop.Trainer, "asked_to_stop", lambda self: True)
    out = tmp_path / "run"
    loop.train(config_from(tiny.settings(folder, out)))
    path = out / "config.yaml"
    path.write_text(path.read_text().replace("batch_size: 4", "batch_size: null"))
    with pytest.raises(UserError, match=r"config\.yaml is damaged: it does not say batch_size"):
        loop.resume(out)


def test_a_run_that_could_not_begin_may_be_begun_there_again(tmp_path, monkeypatch):
    folder = tiny.make_folder(tmp_path / "data")
    config = config_from(tiny.settings(folder, tmp_path / "run"))

    def full(*args):
        raise UserError("no space left")

    monkeypatch.setattr(run_folder, "write_config", full)
    with pytest.raises(UserError, match="no space"):
        loop.train(config)
    assert not list((tmp_path / "run").iterdir()), "an orderly end leaves nothing"
    for name in (".lock", "data.json", "environment.json"):  # as a kill does
        (tmp_path / "run" / name).write_text("")
    assert run_folder.new_run_folder(str(tmp_path / "run"), "data", "model") == tmp_path / "run"
    (tmp_path / "run" / ".lock").unlink()
    with pytest.raises(UserError, match="holds data.json, which a run would write over"):
        loop.train(config)
