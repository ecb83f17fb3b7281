"""A minute's share of the kill campaign, and that the campaign sees what it looks for."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rasterio")
pytest.importorskip("resource")

from campaigns.kill import rounds, troubles
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
    done = campaign("--seed", "21", "--rounds", "8", "--minutes", "0.4", "--cases", "predict", "prepare", "vectorize")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " 0 differences" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("case", ["train", "exact", "ray", "ablate"])
def test_a_share_of_what_takes_longer(case):
    done = campaign("--seed", "21", "--rounds", "3", "--minutes", "2", "--cases", case)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_troubles_follow_from_seed_and_number():
    drawn = [troubles.choose(random.Random(f"1/{n}"), 2.0, 50) for n in range(60)]
    assert drawn == [troubles.choose(random.Random(f"1/{n}"), 2.0, 50) for n in range(60)]
    assert {trouble.kind for trouble in drawn} == {"kill", "moment", "term", "int", "error", "limit"}


class Careless:
    """Writes in place and goes on with whatever is there."""

    name, weight, refuses_change = "careless", 1, False

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
    assert set(cases()) == {"predict", "exact", "ray", "train", "prepare", "vectorize", "ablate"}
