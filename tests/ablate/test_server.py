"""The process that trains one run after the other: a bad run is not the next one's, a dead process is noticed."""

import os

import pytest

from crispseg.ablate.runner import Worker


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
