"""Two models on the same images: what may be said of their difference."""

from __future__ import annotations

import dataclasses
import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

from crispseg.data.folder import Folder, open_folder
from crispseg.errors import UserError
from crispseg.evaluate import Evaluation, Settings, compare, evaluate, write_comparison
from crispseg.evaluate.places import changes
from crispseg.models.base import SegmentationModel
from tests.evaluate.toy import Array, colour_model, labels, spoilt, write_folder


def evaluation_of(root: Path, pairs: dict[str, tuple[Array, Array]], name: str) -> Evaluation:
    """What a model that gives `shown` scores; the folder is the same for all."""
    opened = open_folder(write_folder(root / name / "data", pairs))
    chosen = Settings(tile=0, worst=1)
    return evaluate(colour_model(), opened, settings=chosen, source=name, notes=[f"about {name}"])


def made(root: Path, share: float, name: str, images: int = 14, seed: int = 0) -> Evaluation:
    pairs = {}
    for number in range(images):
        true = labels(number, (30, 30))
        pairs[f"site{number}"] = (spoilt(true, 100 * seed + number, share), true)
    return evaluation_of(root, pairs, name)


def test_a_better_model_is_called_better(tmp_path: Path) -> None:
    comparison = compare(made(tmp_path, 0.3, "a"), made(tmp_path, 0.1, "b"), resamples=500)
    said = comparison.sentences()
    assert said[0].startswith("mIoU: B is better (B - A = +")
    assert said[1].startswith("BF@3px: B is better")
    assert compare(comparison.b, comparison.a, resamples=500).sentences()[0].startswith("mIoU: A is better (B - A = -")


def test_two_draws_of_one_kind_are_within_noise(tmp_path: Path) -> None:
    a, b = made(tmp_path, 0.2, "a"), made(tmp_path, 0.2, "b", seed=1)
    difference = compare(a, b, resamples=500).differences["mIoU"]
    assert difference.low < 0 < difference.high
    assert difference.difference == pytest.approx(b.scores.miou - a.scores.miou)
    assert "mIoU: the difference is within noise" in compare(a, b, resamples=500).sentences()[0]
    same = compare(a, a, resamples=100)
    assert same.differences["mIoU"].p_value == 1 and "within noise" in same.sentences()[0]


def test_caution_is_said(tmp_path: Path) -> None:
    few = compare(made(tmp_path, 0.3, "a", images=3), made(tmp_path, 0.1, "b", images=3), resamples=100)
    assert any("With 3 images the intervals are rough" in text for text in few.sentences())
    one = compare(made(tmp_path / "one", 0.3, "a", images=1), made(tmp_path / "one", 0.1, "b", images=1))
    assert one.differences == {} and one.sentences() == [
        "1 image is too few to tell a difference from noise; score more images."
    ]


def test_what_has_no_score_is_not_called_noise(tmp_path: Path) -> None:
    """Images of one class each have no contour, and images without a label nothing at all."""
    plain = {f"site{number}": (np.full((30, 30), number % 2, np.uint8),) * 2 for number in range(12)}
    flat = evaluation_of(tmp_path, plain, "flat")
    comparison = compare(flat, flat, resamples=100)
    nothing = "not compared, as these images have nothing to score of at least one of the two."
    assert comparison.sentences()[1] == f"BF@3px: {nothing}" and "within noise" in comparison.sentences()[0]
    cells = {row[0]: row[1:] for row in comparison.table().rows}
    assert cells["BF@3px"] == ("-", "-", "-", "", "") and cells["mIoU"][3] == "0.00 to 0.00"
    assert comparison.to_dict()["differences"]["BF@3px"]["p_value"] is None


def test_parts_of_few_tiles_are_told(tmp_path: Path) -> None:
    pairs = {f"tile{n // 6}_part{n % 6}": (labels(n, (20, 20)),) * 2 for n in range(12)}
    root = write_folder(tmp_path / "data", pairs)
    protocol = dataclasses.replace(open_folder(root).protocol, val=("tile0", "tile1"))
    evaluation = evaluate(colour_model(), open_folder(root, protocol=protocol), settings=Settings(tile=0))
    said = compare(evaluation, evaluation, resamples=50).sentences()
    assert any("12 images are parts of 2 tiles" in text for text in said)


def test_only_like_is_compared_with_like(folder: Folder) -> None:
    model: SegmentationModel = colour_model()
    a = evaluate(model, folder, "val", settings=Settings(tile=0))
    b = evaluate(model, folder, "val", settings=Settings(tile=32, overlap=8))
    with pytest.raises(UserError, match="A and B were not scored alike"):
        compare(a, b)


def test_the_folder_holds_both_reports_and_the_verdict(tmp_path: Path) -> None:
    a, b = made(tmp_path, 0.3, "a<1>", images=4), made(tmp_path, 0.1, "b", images=4)
    comparison = compare(a, b, resamples=200)
    page = write_comparison(comparison, tmp_path / "out")
    assert page == tmp_path / "out" / "comparison.html"
    text = page.read_text()
    assert a.conditions.line in text and a.conditions.line in (tmp_path / "out" / "comparison.md").read_text()
    assert not re.search(r"https?:|<script [^>]*src|<link", text) and "a&lt;1&gt;" in text
    for link in re.findall(r'href="([^"]*)"', text):
        assert (tmp_path / "out" / link).is_file()
    for sentence in comparison.sentences():
        assert sentence in html.unescape(text)
    values = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert values == comparison.to_dict()
    assert values["conditions"]["hash"] == a.conditions.protocol.hash
    assert json.loads((tmp_path / "out" / "b" / "scores.json").read_text()) == b.to_dict()
    row = next(row for row in comparison.table().rows if row[0] == "mIoU")
    np.testing.assert_allclose(float(row[3]), 100 * (b.scores.miou - a.scores.miou), atol=0.006)


def test_gains_and_losses_are_the_windows_that_changed_most(tmp_path: Path) -> None:
    """Against a plain count, image by image: each is one window here."""
    truths = {f"site{n}": labels(n, (30, 30)) for n in range(5)}
    shown = {
        side: {name: spoilt(true, seed + i, 0.3) for i, (name, true) in enumerate(truths.items())}
        for seed, side in ((0, "a"), (50, "b"))
    }
    shown["b"]["site1"] = truths["site1"]  # B has all of it right
    shown["b"]["site3"] = (truths["site3"] + 1) % 3  # and here nothing
    a, b = (evaluation_of(tmp_path, {n: (shown[s][n], t) for n, t in truths.items()}, s) for s in "ab")
    gains, losses = changes(a, b)
    expected = {n: float((shown["b"][n] == t).mean() - (shown["a"][n] == t).mean()) for n, t in truths.items()}
    assert gains[0].a.name == "site1" and losses[0].a.name == "site3"
    for change in (*gains, *losses):
        assert change.gain == pytest.approx(expected[change.a.name])
        np.testing.assert_array_equal(change.a.prediction, shown["a"][change.a.name])
        np.testing.assert_array_equal(change.b.prediction, shown["b"][change.b.name])
    assert len(gains) + len(losses) == sum(value != 0 for value in expected.values())
