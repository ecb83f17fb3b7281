"""The catalogue that `crisp models` prints, against the registry it was made from."""

from __future__ import annotations

import pytest

from crispseg.models.catalogue import count, read_catalogue
from crispseg.models.registry import entries, missing_requirement

_HOW = "run: python tools/write_catalogue.py"


def test_names_and_words_are_those_of_the_registry() -> None:
    words = {row.name: (row.summary, row.requires, row.extra) for row in read_catalogue()}
    assert words == {name: (e.summary, e.requires, e.extra) for name, e in entries().items()}, _HOW


def test_counts_of_one() -> None:
    rows = {row.name: row for row in read_catalogue()}
    assert count("crisp_nano") == rows["crisp_nano"], _HOW


@pytest.mark.slow
def test_counts_of_all() -> None:
    for row in read_catalogue():
        if not missing_requirement(entries()[row.name]):
            assert count(row.name) == row, _HOW
