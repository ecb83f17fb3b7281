"""The process that trains one run after the other: a bad run is not the next one's, a dead process is noticed."""

import os
import threading
import time

import pytest

from crispseg.ablate.runner import Worker
from crispseg.train.checkpoint import LAST, load_checkpoint
from crispseg.train.config import config_from, write_config
from crispseg.train.log import METRICS, read_metrics
from tests.train import tiny


def task(log, *words):
    return {"configs": [None], "words": words, "log": str(log)}


@pytest.fixture
def worker():
    worker = Worker(os.environ)
    yield worker
    worker.process.kill()
    worker.process.wait()


def test_a_run_that_fails_leaves_its_reason_and_the_process(worker, tmp_path):
    for number in range(2):
        log = tmp_path / f"{number}.log"
        assert worker.train(task(log, f"data={tmp_path / 'nowhere'}"))
        assert log.read_text().splitlines()[-1].startswith("crisp: ") and "nowhere" in log.read_text()
    assert worker.process.poll() is None


def test_a_wrong_word_ends_the_run_and_not_the_process(worker, tmp_path):
    assert worker.train(task(tmp_path / "log", "no_such_key=1"))
    assert "no_such_key" in (tmp_path / "log").read_text()
    assert worker.process.poll() is None


def test_a_process_that_died_is_noticed(worker, tmp_path):
    worker.process.kill()
    worker.process.wait()
    assert not worker.train(task(tmp_path / "log", "data=anything"))


def test_a_run_saves_and_ends_when_nobody_waits_for_it(worker, folder, tmp_path):
    """As when the one who started it was killed: its end of the pipe is closed."""
    out = tmp_path / "run"
    never = {"val_every": 1_000_000, "save_every": 1_000_000}
    config = config_from(tiny.settings(folder, out, schedule={"steps": 100_000}, **never))
    write_config(config, tmp_path / "config.yaml")
    given = {"configs": [str(tmp_path / "config.yaml")], "words": [], "log": str(tmp_path / "log")}
    threading.Thread(target=worker.train, args=(given,), daemon=True).start()
    while not (out / METRICS).exists() or not read_metrics(out / METRICS):
        assert worker.process.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.05)
    assert not (out / LAST).exists()
    worker.process.stdin.close()
    worker.process.wait(timeout=60)
    assert 4 <= load_checkpoint(out / LAST)["step"] < 100_000
    assert not (out / "result.json").exists()
