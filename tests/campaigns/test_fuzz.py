"""A minute's share of the fuzz campaign, and that the campaign sees what it looks for."""

import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from campaigns.fuzz import cases
from campaigns.fuzz.mutate import damage_bytes, mutate
from campaigns.fuzz.targets import Target

from crispseg.errors import UserError

ROOT = Path(__file__).parents[2]
pytest.importorskip("rasterio")


def test_a_share_of_the_campaign():
    """600 damaged files, each read or refused."""
    words = [sys.executable, "-m", "campaigns.fuzz", "--cases", "600", "--seed", "21"]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "600 cases of seed 21" in done.stdout and " 0 faults" in done.stdout


def test_cases_follow_from_seed_and_number():
    data = bytes(range(256)) * 4
    made = [mutate(random.Random(f"1/{n}"), "x.bin", data) for n in range(40)]
    assert made == [mutate(random.Random(f"1/{n}"), "x.bin", data) for n in range(40)]
    assert len({content for _, content in made}) > 30
    assert damage_bytes(random.Random(5), b"") is not None


def read_with(reader, tmp_path, monkeypatch):
    """What a case of a target that reads so comes to; damaged is a file of one byte."""

    def make(folder):
        (folder / "x.bin").write_bytes(b"x")

    sound = [True]

    def read(folder):
        if not sound[0]:
            reader(folder)

    monkeypatch.setattr(cases, "targets", lambda: [Target("stand-in", make, ("x.bin",), read)])
    bench = cases.Bench(tmp_path, seed=0)
    sound[0] = False
    return bench.run(0)


def raises(error):
    def reader(folder):
        raise error

    return reader


def forever(folder):
    end = time.monotonic() + 20
    while time.monotonic() < end:
        pass


@pytest.mark.parametrize(
    ("reader", "ended", "said"),
    [
        (lambda folder: None, "read", ""),
        (raises(UserError("it is damaged")), "refused", "it is damaged"),
        (raises(UserError("")), "fault", "without words"),
        (raises(KeyError("x")), "fault", "KeyError: 'x'"),
        (raises(MemoryError()), "fault", "MemoryError"),
        (forever, "fault", "not done after"),
        (lambda folder: time.sleep(20), "fault", "not done after"),
        (lambda folder: bytearray(300 << 20).__len__(), "fault", "took 0.3 GiB"),
        (lambda folder: socket.create_connection(("127.0.0.1", 9)), "fault", "Escape: socket"),
        (lambda folder: subprocess.run(["true"]), "fault", "Escape: subprocess.Popen"),
        (lambda folder: Path("/etc/passwd").read_text(), "fault", "Escape: open /etc/passwd"),
        (lambda folder: (folder.parent / "beside").write_text("x"), "fault", "Escape: open"),
        (lambda folder: os.remove(folder.parent / "beside"), "fault", "Escape: os.remove"),
        (lambda folder: (folder / "out").write_text("x"), "read", ""),
    ],
)
def test_what_the_campaign_sees(reader, ended, said, tmp_path, monkeypatch):
    monkeypatch.setattr(cases, "SECONDS", 0.3)
    monkeypatch.setattr(cases, "BYTES", 200 << 20)
    outcome = read_with(reader, tmp_path, monkeypatch)
    assert (outcome.ended, said in outcome.said) == (ended, True), outcome
