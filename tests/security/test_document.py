"""SECURITY.md: every promise names tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROMISES = [line for line in (ROOT / "SECURITY.md").read_text().splitlines() if line.startswith("| ")][1:]


def test_there_are_promises():
    assert len(PROMISES) > 10


@pytest.mark.parametrize("promise", PROMISES, ids=lambda line: line[2:40])
def test_each_promise_has_its_tests(promise):
    names = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", promise)
    assert names, "a promise without a test"
    for path, name in names:
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.M), f"{path} has no {name}"
