"""From the archives to a report, all on the command line: prepare, train (two steps), eval."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from crispseg.cli.main import main
from crispseg.data.protocol import get_protocol
from tests.fakedata import fake_loveda, fake_potsdam, fake_vaihingen


@pytest.mark.parametrize(
    ("dataset", "fake", "protocol", "labels"),
    [
        ("potsdam", fake_potsdam, "potsdam/paper5", "eroded"),
        ("vaihingen", fake_vaihingen, "vaihingen/geoseg6", "eroded"),
        ("loveda", fake_loveda, "loveda/val7", "full"),
    ],
)
def test_from_archive_to_report(
    dataset: str,
    fake: Callable[..., Path],
    protocol: str,
    labels: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    fake(tmp_path / "archives", zipped=True)
    assert main(["prepare", dataset, "--source", "archives", "--out", "data"]) == 0
    run = ["data=data", f"data.protocol={protocol}", "model=crisp_nano", "schedule.steps=2", "batch_size=2", "crop=32"]
    assert main(["train", *run, "samples=0", "device=cpu", "out=run"]) == 0
    assert main(["eval", "run", "data", "--tile", "0", "--device", "cpu", "--out", "report"]) == 0
    values = json.loads(Path("report/scores.json").read_text())
    known = get_protocol(protocol)
    conditions = values["conditions"]
    assert (conditions["protocol"], conditions["hash"], conditions["labels"]) == (protocol, known.hash, labels)
    assert conditions["split"] == known.scored_split and values["notes"] == []
    assert len(values["images"]) == (6 if dataset == "loveda" else len(known.test))
    assert values["scores"]["scored"] == list(known.scored)
    assert values["boundary"]["BF@3px"] is not None
