"""The process that trains one run after the other: a bad run is not the next one's, a dead process is noticed."""

import os

import pytest

from crispseg.ablate.runner import Worker


@pytest.fixture
def worker():
    worker = Worker(os.environ)
    yield worker
    worker.process.kill()
    worker.process.wait()


def test_a_run_that_fails_leaves_its_reason_and_the_process(worker, tmp_path):
    for number in range(2):
        log = tmp_path / f"{number}.log"
        assert worker.train([f"data={tmp_path / 'nowhere'}"], log)
        assert log.read_text().splitlines()[-1].startswith("crisp: ") and "nowhere" in log.read_text()
    assert worker.process.poll() is None


def test_a_wrong_word_ends_the_run_and_not_the_process(worker, tmp_path):
    assert worker.train(["--no-such-option"], tmp_path / "log")
    assert "--no-such-option" in (tmp_path / "log").read_text()
    assert worker.process.poll() is None


def test_a_process_that_died_is_noticed(worker, tmp_path):
    worker.process.kill()
    worker.process.wait()
    assert not worker.train(["data=anything"], tmp_path / "log")
