"""Tables from the command line, with trainings of a second."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

from crispseg.ablate.runner import Failure
from crispseg.ablate.table import CLASS_SCORES, SCORES
from crispseg.cli import main
from crispseg.cli.ablate import what_failed
from tests.train import tiny
from tests.train.tiny import weights_of


@pytest.fixture
def places(tmp_path):
    """Two tables that share a run, and two configs of the same images."""
    folder = tiny.make_folder(tmp_path / "squares")
    base = tiny.settings(folder, tmp_path, schedule={"steps": 2}, samples=1)
    del base["out"]
    for name, scale in (("one", [0.5, 2.0]), ("two", [1.0, 1.0])):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({**base, "augment": {"scale": scale}}))
    write_table(tmp_path, "dco", on={"dco": True}, off={"dco": False})
    write_table(tmp_path, "prototypes", one={"prototypes": 1}, three={"prototypes": 3})
    return tmp_path


def write_table(folder, stem, more=None, **options):
    rows = [{"name": name, "set": {"model": {"options": value}}} for name, value in options.items()]
    (folder / f"{stem}.yaml").write_text(yaml.safe_dump({"title": stem.upper(), "rows": rows, **(more or {})}))


def ablate(places, *words, data=("one",)):
    sets = [str(places / f"{name}.yaml") for name in data]
    return ["ablate", *words, "--data", *sets, "--out", str(places / "out")]


def test_tables_share_runs_and_keep_only_results(places, capsys):
    tables = [str(places / f"{name}.yaml") for name in ("dco", "prototypes")]
    assert main.main([*ablate(places, *tables, data=("one", "two")), "--list"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("6 runs for 8 places; 0 finished\n")
    assert "    dco: on, one, seed 0\n    prototypes: three, one, seed 0\n" in said
    assert not (places / "out").exists()

    words = ablate(places, *tables)
    assert main.main([*words, "--keep", "results", "--together", "2"]) == 0
    said = "".join(capsys.readouterr())
    assert said.count("dco: Start: all rows from random weights") == 1  # the smallest CRISP has no backbone
    assert "## DCO" in said and "## PROTOTYPES" in said and said.count("finished, mIoU") == 3
    runs = [path for path in (places / "out" / "runs").iterdir() if path.is_dir()]
    assert len(runs) == 3
    small = {"config.yaml", "environment.json", "protocol.json", "metrics.jsonl", "result.json"}
    assert all({path.name for path in run.iterdir()} == small for run in runs)
    kept = json.loads((places / "out" / "results.json").read_text())
    assert set(kept["runs"]) == {run.name for run in runs} and not kept["failed"]
    scores = next(iter(kept["runs"].values()))["result"]["last"]
    assert {*SCORES, *CLASS_SCORES, "scored"} == set(scores)

    written = {name: (places / "out" / name).read_text() for name in ("dco.md", "dco.json", "prototypes.md")}
    for name in written:
        (places / "out" / name).unlink()
    assert main.main([*words, "--report"]) == 0
    assert "started" not in "".join(capsys.readouterr())
    assert written == {name: (places / "out" / name).read_text() for name in written}


def test_rows_that_share_batches_give_what_they_give_alone(places, capsys):
    words = ablate(places, str(places / "dco.yaml"))
    assert main.main(words) == 0
    alone = json.loads((places / "out" / "results.json").read_text())["runs"]
    (places / "out").rename(places / "alone")
    assert main.main([*words, "--sharing", "2"]) == 0
    together = json.loads((places / "out" / "results.json").read_text())["runs"]
    assert len(list((places / "out" / "runs").glob("*.log"))) == 1
    assert [run["result"]["last"] for run in together.values()] == [run["result"]["last"] for run in alone.values()]
    for run in together:
        theirs, ours = (weights_of(places / place / "runs" / run) for place in ("alone", "out"))
        assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


def test_rows_that_were_cut_off_go_on_together(places, tmp_path, capsys):
    """Those left at the same step in one process; what is in results.json is as if nothing had happened."""
    words = [*ablate(places, str(places / "dco.yaml")), "--sharing", "2"]
    assert main.main(words) == 0
    whole = json.loads((places / "out" / "results.json").read_text())["runs"]
    runs = [path for path in (places / "out" / "runs").iterdir() if path.is_dir()]
    for run in runs:  # as a killed process leaves it: begun, nothing saved
        for path in run.iterdir():
            if path.name not in ("config.yaml", "environment.json", "protocol.json", "data.json"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (
        *(places / "out").glob("*.json"),
        *(places / "out").glob("*.md"),
        *(places / "out/runs").glob("*.log"),
    ):
        path.unlink()
    capsys.readouterr()
    assert main.main(words) == 0
    assert capsys.readouterr().err.count("resumed") == len(runs) == 2
    assert len(list((places / "out" / "runs").glob("*.log"))) == 1
    again = json.loads((places / "out" / "results.json").read_text())["runs"]
    assert [run["result"]["last"] for run in again.values()] == [run["result"]["last"] for run in whole.values()]


def test_a_row_that_fails_leaves_those_it_shares_batches_with(places, capsys):
    write_table(places, "dim", good={}, bad={"dim": 15})
    assert main.main([*ablate(places, str(places / "dim.yaml")), "--sharing", "2"]) == 1
    said = capsys.readouterr()
    assert "1 of 2 runs failed; dim: bad, squares, seed 0: " in said.err
    assert "| good | 1 |" in said.out or "good, squares, seed 0: finished" in said.out


def test_runs_that_fail_alike_are_told_together():
    """It was one line of many thousand characters."""
    alike = [Failure(f"dim: row{number}, squares, seed 0", "no data", Path(f"{number}.log")) for number in range(7)]
    other = Failure("dim: bad, squares, seed 0", "dim must be even", Path("bad.log"))
    told = what_failed([*alike[:2], other, *alike[2:]], 9, ["speed is not timed: no GPU"]).splitlines()
    assert told[:3] == ["8 of 9 runs failed", "  no data", "    dim: row0, squares, seed 0 (see 0.log)"]
    assert told[6:] == [
        "    dim: row4, squares, seed 0 (see 4.log)",
        "    ... and 2 more",
        "  dim must be even",
        "    dim: bad, squares, seed 0 (see bad.log)",
        "speed is not timed: no GPU",
    ]
    assert (
        what_failed([other], 2, []) == "1 of 2 runs failed; dim: bad, squares, seed 0: dim must be even (see bad.log)"
    )


def test_one_row_fails_and_is_mended(places, capsys):
    write_table(places, "dim", good={}, bad={"dim": 15})
    words = ablate(places, str(places / "dim.yaml"))
    assert main.main(words) == 1
    said = capsys.readouterr()
    assert "1 of 2 runs failed; dim: bad, squares, seed 0: " in said.err
    assert "| bad | 0 of 1: failed | - |" in said.out and "- bad, squares, seed 0: failed: " in said.out
    assert main.main([*words, "--report"]) == 0  # the failure is remembered
    assert "| bad | 0 of 1: failed | - |" in capsys.readouterr().out

    write_table(places, "dim", good={}, bad={"dim": 8})
    assert main.main(words) == 0
    said = "".join(capsys.readouterr())
    assert "dim: good, squares, seed 0: finished already" in said and "dim: bad, squares, seed 0: started" in said
    assert "Missing" not in said


def test_a_row_that_starts_differently_is_warned_of(places, capsys):
    rows = [{"name": name, "set": {"model": {"weights": name}}} for name in ("none", "vssd_nano")]
    (places / "starts.yaml").write_text(yaml.safe_dump({"title": "Starts", "rows": rows}))
    words = ablate(places, str(places / "starts.yaml"), "model.options={}")
    assert main.main([*words, "--list", "--quiet"]) == 0
    assert "warning: starts: rows start differently" in capsys.readouterr().out
    assert main.main([*words, "--report", "--quiet"]) == 0
    said = capsys.readouterr()
    assert "warning: starts: rows start differently" in said.err and "Warning: rows start differently" in said.out


def test_no_run_begins_when_the_time_is_up(places, capsys):
    assert main.main([*ablate(places, str(places / "dco.yaml")), "--minutes", "-1"]) == 0
    said = "".join(capsys.readouterr())
    assert "not started, the time is up" in said and "0 of 1: not run" in said


def test_speed_and_plot_of_a_table_with_bench(places, capsys):
    pytest.importorskip("matplotlib")
    model = {"model": {"name": "crisp_nano", "options": tiny.OPTIONS}}
    how = {"sizes": [32], "batches": [1], "precision": "fp32", "modes": ["eager"], "classes": 2, "repeats": 1}
    smaller = "crisp_nano:width=8,depths=[1,1,1,1]"
    write_table(places, "rivals", {"bench": how | {"beside": [smaller]}, "set": model}, on={"dco": True})
    words = ablate(places, str(places / "rivals.yaml"))
    assert main.main([*words, "--no-bench"]) == 0
    assert "GMACs" not in capsys.readouterr().out
    assert main.main(words) == 0
    said = capsys.readouterr().out
    assert "| params M | GMACs | ms (32 px, batch 1, eager) |" in said and "![RIVALS](rivals-squares.png)" in said
    assert f"| {smaller} | timed only | - |" in said
    assert Image.open(places / "out" / "rivals-squares.png").size[0] > 500
    before = (places / "out" / "rivals.md").read_text()
    assert main.main([*words, "--report"]) == 0
    assert (places / "out" / "rivals.md").read_text() == before


def test_a_table_that_cannot_be_timed_hides_no_failed_run(places, capsys):
    how = {"sizes": [32], "batches": [1], "precision": "fp32", "modes": ["eager"], "classes": 2, "repeats": 1}
    model = {"model": {"name": "crisp_nano", "options": tiny.OPTIONS}}
    write_table(places, "timed", {"bench": how, "set": model}, bad={"dim": 15})
    write_table(places, "others", {"bench": how, "set": model}, good={})
    words = ablate(places, *(str(places / f"{name}.yaml") for name in ("timed", "others")))
    assert main.main(words) == 1
    said = capsys.readouterr()
    assert "1 of 2 runs failed; timed: bad, squares, seed 0: " in said.err
    assert "\ntimed is not timed: " in said.err
    assert "| params M | GMACs | ms (32 px, batch 1, eager) |" in said.out


def test_interrupted_it_says_what_is_missing_and_goes_on(places):
    words = ablate(places, str(places / "dco.yaml"), "schedule.steps=100000", "val_every=100000", "device=cpu")
    command = [sys.executable, "-m", "crispseg.cli.main", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list((places / "out" / "runs").glob("*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGTERM)
    said, complained = process.communicate(timeout=120)
    assert process.returncode == 143 and "interrupted" in complained
    assert "0 of 1: unfinished" in said and "0 of 1: not run" in said
    assert list((places / "out" / "runs").glob("*/last.pt"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["seed=1"], "no table"),
        (["nothere.yaml"], "no table file nothere.yaml"),
        (["{dco}", "--together", "0"], "--together must be at least 1"),
        (["{dco}", "optimiser.lr=1"], "unknown config key 'optimiser'"),
        (["{dco}", "seed=3"], "give --seeds 3"),
        (["{dco}", "out=elsewhere"], "give --out elsewhere"),
    ],
)
def test_mistakes_are_told(places, capsys, words, said):
    assert main.main(ablate(places, *(word.format(dco=places / "dco.yaml") for word in words))) == 1
    assert said in capsys.readouterr().err
    assert not (places / "out").exists()


def test_a_size_that_no_model_has_is_told_before_the_first_run(places, capsys):
    with pytest.raises(SystemExit, match="2"):
        main.main(ablate(places, str(places / "dco.yaml"), "--size", "nan", "--list"))
    assert "argument --size: invalid choice: 'nan'" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_told_before_the_first_run(places, capsys):
    (places / "out").write_text("a file, not a folder")
    words = ablate(places, str(places / "dco.yaml"))
    assert main.main([*words[:-1], str(places / "out" / "below")]) == 1
    said = capsys.readouterr().err
    assert "cannot make the folder" in said and "choose another with --out" in said and said.count("\n") == 1


def test_rows_that_are_named_train_alone(places, capsys):
    words = ablate(places, str(places / "dco.yaml"))
    assert main.main([*words, "--rows", "no such row"]) == 1
    assert "no table has a row 'no such row'; there are: on; off" in capsys.readouterr().err
    assert main.main([*words, "--list", "--rows", "off"]) == 0
    assert capsys.readouterr().out.endswith("1 runs for 1 places; 0 finished\n")
    assert main.main([*words, "--rows", "off"]) == 0
    assert "- on, squares, seed 0: not run" in capsys.readouterr().out
    kept = json.loads((places / "out" / "results.json").read_text())
    assert [run["description"]["model"]["options"]["dco"] for run in kept["runs"].values()] == [False]


@pytest.mark.parametrize(("earlier", "later"), [(["--rows", "on"], ["--rows", "off"]), ([], ["--seeds", "1"])])
def test_part_of_a_table_is_not_set_beside_a_part_of_other_data(places, capsys, earlier, later):
    words = ablate(places, str(places / "dco.yaml"))
    assert main.main([*words, *earlier]) == 0
    Image.new("L", (40, 40)).save(places / "squares" / "masks" / "scene0.png")
    assert main.main([*words, *later]) == 1
    assert "has changed since: rows of one table would not belong together" in capsys.readouterr().err
