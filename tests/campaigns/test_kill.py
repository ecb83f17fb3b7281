"""A minute's share of the kill campaign, and that the campaign sees what it looks for."""

import errno
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rasterio")
pytest.importorskip("resource")

from campaigns.kill import disk, rounds, troubles
from campaigns.kill.cases import cases

from crispseg.errors import UserError

ROOT = Path(__file__).parents[2]


def campaign(*words):
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "-m", "campaigns.kill", *words]
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)


def test_a_share_of_the_campaign():
    """Some rounds of what is quick to start; `make campaign` plays them all."""
    quick = ("predict", "prepare", "vector", "vectorize")
    done = campaign("--seed", "21", "--rounds", "16", "--minutes", "0.4", "--cases", *quick)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " 0 differences" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("case", ["train", "pretrain", "exact", "remote", "ray", "ablate", "export"])
def test_a_share_of_what_takes_longer(case):
    done = campaign("--seed", "21", "--rounds", "3", "--minutes", "2", "--cases", case)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_troubles_follow_from_seed_and_number():
    drawn = [troubles.choose(random.Random(f"1/{n}"), 2.0, 50, 90) for n in range(90)]
    assert drawn == [troubles.choose(random.Random(f"1/{n}"), 2.0, 50, 90) for n in range(90)]
    assert {trouble.kind for trouble in drawn} == set(troubles.KINDS)


class Careless:
    """Writes in place and goes on with whatever is there."""

    name, weight, refuses_change, needs = "careless", 1, False, ()

    def make(self, folder):
        (folder / "in").mkdir(parents=True, exist_ok=True)
        (folder / "in" / "word").write_text("long")

    def change(self, folder):
        (folder / "in" / "word").write_text("other")

    def run(self, folder, existing):
        (folder / "out").mkdir(exist_ok=True)
        out = folder / "out" / "word"
        if not (folder / "in" / "word").exists():
            raise UserError("there is no word")
        if not out.exists():
            out.write_text("half")
            os.fsync(os.open(out, os.O_RDONLY))
            out.write_text((folder / "in" / "word").read_text())

    def content(self, folder):
        return {"word": (folder / "out" / "word").read_text()}

    def is_finished(self, folder):
        return False

    def has_begun(self, folder):
        return True


def test_the_campaign_sees_carelessness(tmp_path):
    case = Careless()
    whole = rounds.run_whole(case, tmp_path)
    assert (whole.content, whole.changed) == ({"word": "long"}, {"word": "other"})
    case.make(tmp_path / "round")
    outcome = rounds.run(case, tmp_path / "round", troubles.Trouble("moment", call=2))
    assert outcome.status == -signal.SIGKILL
    played = rounds.Round("careless")
    rounds._end_in_peace(case, tmp_path / "round", whole.content, "refuse", played)
    assert played.faults == ["word differs"]
    full = rounds.run(case, tmp_path / "full", troubles.Trouble("error", call=1, error=28))
    assert full.status == rounds.FAULT and "No space left" in full.said, "an error that nobody explains is a fault"


def test_every_case_is_known():
    maps, learning = {"predict", "exact", "ray", "remote", "vectorize"}, {"train", "pretrain", "ablate"}
    assert set(cases()) == {*maps, *learning, "prepare", "vector", "export"}


def test_the_disk_fails_whoever_writes(tmp_path):
    """Also where Python is not asked: SQLite writes by itself."""
    code = """
import errno, pathlib, signal, sqlite3, sys
from campaigns.kill import disk
folder, at, what = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
disk.watch(folder, at, what)
with sqlite3.connect(folder / "x.db") as database:
    database.execute("create table t (a)")
print(disk.writes())
"""
    with disk.compiled() as more:
        if not more:
            pytest.skip("no compiler")

        def run(at, what):
            words = [sys.executable, "-c", code, str(tmp_path), str(at), str(what)]
            paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
            environment = {**os.environ, "PYTHONPATH": paths, **more}
            (tmp_path / "x.db").unlink(missing_ok=True)
            return subprocess.run(words, env=environment, capture_output=True, text=True)

        assert int(run(-1, 0).stdout) > 3
        assert "disk I/O error" in run(2, errno.EIO).stderr
        assert run(3, disk.TEAR).returncode == run(2, disk.KILL).returncode == -signal.SIGKILL
