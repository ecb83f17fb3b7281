"""Every command of the scripts for a GPU names files, verbs, models and options that exist: minutes there are few.

The scripts run with a Python that only notes what it is called with; the notes are then parsed by what they are for.
"""

import argparse
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from crispseg.bench import specs
from crispseg.cli.main import VERBS, verb_parser
from crispseg.cli.words import split_words
from crispseg.configs import find_config, find_table
from crispseg.train.config import train_config

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.name for path in ROOT.glob("benchmarks/*on_gpu.sh"))
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the scripts are for Linux")

NOTING = """#!/bin/sh
note=$(mktemp "$NOTES/XXXXXX")
for word; do printf '%s\\0' "$word"; done >"$note"
"""


def found_in(script, pattern):
    return re.findall(pattern, (ROOT / "benchmarks" / script).read_text(encoding="utf-8"), re.M)


def steps_of(script):
    """Its own, and of those that all scripts have, the ones it speaks of."""
    shared = [step for step in found_in("steps.sh", r"^run_(\w+)\(\)") if found_in(script, rf"^# {step} ")]
    return [*shared, *found_in(script, r"^run_(\w+)\(\)")]


@pytest.fixture(scope="module", params=SCRIPTS)
def commands(request, tmp_path_factory):
    """The words of each command of a script, all of its steps run."""
    script, folder = request.param, tmp_path_factory.mktemp("gpu")
    (folder / "notes").mkdir()
    for name in ("python", "nvidia-cuda-mps-control"):
        (folder / name).write_text(NOTING if name == "python" else "#!/bin/sh\n")
        (folder / name).chmod(0o755)
    (places,) = found_in(script, rf"^#   benchmarks/{script} ((?:[A-Z]+ )+)")
    environment = os.environ | {"PYTHON": str(folder / "python"), "NOTES": str(folder / "notes")}
    environment["PATH"] = f"{folder}{os.pathsep}{environment['PATH']}"
    words = ["bash", f"benchmarks/{script}", *(str(folder / place) for place in places.split()), *steps_of(script)]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert "command not found" not in done.stdout + done.stderr
    found = [note.read_text().split("\0")[:-1] for note in (folder / "notes").iterdir()]
    assert len(found) >= len([step for step in steps_of(script) if step != "watch"])
    return found


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_step_is_explained(script):
    """At the script's top."""
    told = found_in(script, r"^# (\w+)  +\S|; (\w+): of one image")
    assert set(steps_of(script)) == {a or b for a, b in told}


class Parsed(Exception):
    """A script understood its words; that is enough."""


@pytest.fixture
def only_parsing(monkeypatch):
    original = argparse.ArgumentParser.parse_args

    def parse(self, *given):
        raise Parsed(original(self, *given))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    return monkeypatch


def test_commands_are_understood(commands, only_parsing):
    for words in commands:
        if words[:2] == ["-m", "crispseg.cli.main"]:
            check_verb(*words[2:])
        elif words[:2] == ["-m", "pytest"]:
            check_tests(words[2:])
        elif words[0] == "-c":
            compile(words[1], "command", "exec")
        elif words[0] == "-m":
            understood(words[1:], lambda name: runpy.run_module(name, run_name="__main__"), only_parsing)
        else:
            assert (ROOT / words[0]).is_file(), words
            if "ArgumentParser" in (ROOT / words[0]).read_text(encoding="utf-8"):
                only_parsing.syspath_prepend(str((ROOT / words[0]).parent))  # as for a script: its neighbours are found
                understood(words, lambda name: runpy.run_path(str(ROOT / name), run_name="__main__"), only_parsing)


def understood(words, run, monkeypatch):
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(Parsed) as parsed:
        run(words[0])
    given = vars(parsed.value.args[0])
    if words[0].endswith("training.py") and "data" in given and given["words"]:
        train_config(None, given["words"])


def check_verb(verb, *words):
    assert verb in VERBS
    given = verb_parser(verb).parse_intermixed_args(words)
    if verb == "bench":
        named = [word for word in given.words if word not in ("scaling", "ops", "compare") and "bench.json" not in word]
        beside = [given.relative_to] if given.relative_to else []
        specs.parse(word.partition("@")[0] for word in [*named, *beside, *(given.skip or [])])
    elif verb == "ablate":
        keys = [word for word in given.words if "=" in word]
        assert all(find_table(word) for word in given.words if word not in keys)
        for word in given.data:
            train_config(find_config(word.partition("=")[0]), keys)
    else:
        assert verb == "train", f"look at what {verb} is given, too"
        train_config(*split_words(given.words))


def check_tests(words):
    files = [word for word in words if word.endswith(".py")]
    assert "tests/models/test_registered_gpu.py" in files
    assert all((ROOT / file).is_file() for file in files)
    plain = [word for word in words if word.startswith("--") and "=" not in word]
    helped = subprocess.run([sys.executable, "-m", "pytest", "--help"], capture_output=True, text=True, cwd=ROOT).stdout
    assert all(option in helped for option in plain)


def test_a_wrong_word_shows():
    with pytest.raises(SystemExit):
        check_verb("bench", "crisp_nano", "--preccision", "bf16")
    with pytest.raises(Exception, match="did you mean"):
        check_verb("bench", "crisp_nanno", "--precision", "bf16")
    with pytest.raises(Exception, match="did you mean"):
        check_verb("train", "crisp_nano_aerial", "workerss=6")


TRAINING = """#!/bin/bash
while [ $# -gt 0 ]; do [ "$1" != --out ] || out=$2; shift; done
mkdir -p "$out/runs/one"
echo '{"step": 50}' >"$out/runs/one/metrics.jsonl"
sleep 2
echo '{"runs": {}}' >"$out/results.json"
"""


def test_runs_behind_go_on_and_are_watched(tmp_path):
    (tmp_path / "python").write_text(TRAINING)
    (tmp_path / "python").chmod(0o755)
    command = ["bash", "benchmarks/method_on_gpu.sh", str(tmp_path / "work"), str(tmp_path / "out")]
    environment = os.environ | {"PYTHON": str(tmp_path / "python"), "WATCH_SECONDS": "30"}
    subprocess.run([*command, "behind", "confirm", "rivals"], cwd=ROOT, env=environment, check=True, timeout=20)
    assert not (tmp_path / "work" / "confirm" / "results.json").exists(), "they were waited for"
    said = subprocess.run([*command, "watch"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert said.stdout.count('one: "step": 50') == 2
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"confirm.json", "rivals.json", "watch.log"}
