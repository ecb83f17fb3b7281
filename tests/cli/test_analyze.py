"""`crisp analyze` from its words to its page, and mistakes that leave nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crispseg.cli import main as command
from tests.analysis.conftest import make_model
from tests.fakedata import fake_own


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(command.VERBS, "analyze", "look into a trained model")
    fake_own(tmp_path / "sites", colour=True)
    make_model().save(tmp_path / "model")


def test_two_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_model(dco=False).save(tmp_path / "bare")
    words = ["model", "sites", "--against", "bare", "--split", "val", "--images", "1", "--pictures", "1"]
    assert command.main(["analyze", *words, "--device", "cpu", "--focus", "roof"]) == 0
    said = capsys.readouterr().out
    out = Path("reports/analysis-sites-model-1")
    assert f"analysis: {out / 'analysis.html'}" in said and (out / "analysis.html").is_file()
    values = json.loads((out / "analysis.json").read_text())
    assert values["conditions"]["line"] in said and values["conditions"]["images"] == 1
    assert [variant["source"] for variant in values["variants"].values()] == ["model", "model", "model", "bare"]
    assert f"{100 * values['variants']['against']['figures']['mIoU']:.2f}" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", "sites"], "there is no model folder nowhere"),
        (["model", "sites", "--focus", "watr"], "unknown class 'watr'; did you mean 'water'"),
        (["model", "sites", "--split", "test"], "the test split of sites is empty"),
        (["model", "sites", "--out", "model"], "model exists and is not an empty folder"),
        (["model", "sites", "--device", "cude"], "device 'cude' cannot be used here"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(Path().rglob("*"))
    assert command.main(["analyze", *words]) == 1
    assert set(Path().rglob("*")) == before
    said = capsys.readouterr().err
    assert said.startswith("crisp: ") and message in said and said.count("\n") == 1
