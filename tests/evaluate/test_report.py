"""The report folder: complete, readable without anything else, and true to the scores."""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import html
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crispseg.data.drawing import unlabelled_colour, wrong_colour
from crispseg.data.folder import Folder
from crispseg.errors import UserError
from crispseg.evaluate import Evaluation, Settings, evaluate, write_report
from crispseg.evaluate.pictures import draw_classes, draw_confusion, draw_worst
from crispseg.evaluate.places import large_confusions
from crispseg.evaluate.report import reserved
from crispseg.evaluate.tables import Table
from crispseg.metrics.words import percent
from tests.evaluate.conftest import Pairs
from tests.evaluate.toy import colour_model


@pytest.fixture(scope="module")
def evaluation(folder: Folder) -> Evaluation:
    chosen = Settings(tile=32, overlap=8, worst=2)
    return evaluate(colour_model(), folder, "val", settings=chosen, source="models/<toy>", notes=["read & <heed>"])


@pytest.fixture(scope="module")
def report(evaluation: Evaluation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "report"
    assert write_report(evaluation, out) == out / "report.html"
    return out


def test_all_files_are_there_and_name_the_protocol(report: Path, evaluation: Evaluation) -> None:
    names = sorted(path.relative_to(report).as_posix() for path in report.rglob("*") if path.is_file())
    images = len({window.index for window in evaluation.worst})
    assert names == [
        "confusion.png",
        *(f"maps/{n:02d}{kind}.png" for n in range(1, images + 1) for kind in ("-truth", "")),
        "per_image.csv",
        "places.json",
        "reliability.png",
        "report.html",
        "scores.json",
        "scores.md",
        *(f"worst/{n:02d}-{w.name}-{w.top}-{w.left}.jpg" for n, w in enumerate(evaluation.worst, 1)),
    ]
    for name in ("per_image.csv", "report.html", "scores.json", "scores.md"):
        assert evaluation.conditions.line in (report / name).read_text()
    for path in report.rglob("*.[pj][np]g"):
        with Image.open(path) as picture:
            picture.load()
            assert min(picture.size) > 100 or path.parent.name == "maps"


def test_json_comes_back_as_it_was(report: Path, evaluation: Evaluation) -> None:
    values = json.loads((report / "scores.json").read_text())
    assert values == evaluation.to_dict()
    assert values["headline"]["mIoU"] == evaluation.scores.miou
    assert values["confusion"] == evaluation.confusion.counts.tolist()
    assert "NaN" not in (report / "scores.json").read_text()


def test_no_image_name_is_a_formula(evaluation: Evaluation, tmp_path: Path) -> None:
    images = (dataclasses.replace(evaluation.images[0], name="=cmd|' /C calc'!A0"), *evaluation.images[1:])
    write_report(dataclasses.replace(evaluation, images=images, worst=()), tmp_path / "report")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "report" / "per_image.csv").read_text())))
    assert rows[0]["image"] == "'=cmd|' /C calc'!A0"


def test_csv_has_a_row_per_image(report: Path, evaluation: Evaluation) -> None:
    rows = list(csv.DictReader(io.StringIO((report / "per_image.csv").read_text())))
    assert [row["image"] for row in rows] == ["site0", "site1", "site2"]
    for row, image in zip(rows, evaluation.images, strict=True):
        matrix = image.confusion.counts.numpy()
        assert int(row["pixels"]) == matrix.sum()
        assert float(row["OA"]) == pytest.approx(np.trace(matrix) / matrix.sum())
        assert float(row["IoU water"]) == pytest.approx(
            matrix[1, 1] / (matrix[1].sum() + matrix[:, 1].sum() - matrix[1, 1])
        )
        assert image.boundary is not None and float(row["BF@3px"]) == image.boundary.scores().mbf


def test_the_page_needs_nothing_else(report: Path) -> None:
    text = (report / "report.html").read_text()
    assert not re.search(r"https?:|<script [^>]*src|<link|@import|url\(", text)
    sources = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert sources and all(re.match(r"data:image/(png|jpeg);base64,", source) for source in sources)
    pictures = re.findall(r"<img [^>]*>", text)
    assert len(pictures) == len(sources) and all(re.search(r'alt="[^"]{5,}"', picture) for picture in pictures)
    assert "models/&lt;toy&gt;" in text and "read &amp; &lt;heed&gt;" in text and "<heed>" not in text
    assert 'name="viewport"' in text


def test_the_page_allows_only_its_own_scripts_and_styles(report: Path) -> None:
    text = (report / "report.html").read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None and "unsafe" not in policy[1] and "default-src 'none'" in html.unescape(policy[1])
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        for inside in re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL):
            digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in html.unescape(policy[1]).partition(directive)[2]
    assert not re.search(r' style="| on[a-z]+="', text)  # the policy would refuse them


def test_the_page_says_the_scores(report: Path, evaluation: Evaluation) -> None:
    text = html.unescape((report / "report.html").read_text())
    for value in evaluation.headline.values():
        assert f"<b>{percent(value)}</b>" in text
    counts = evaluation.confusion.counts.numpy()
    shares = 100 * counts / counts.sum(1, keepdims=True)
    cells = re.findall(r'<td class="heat-\d+">(?:<b>)?([\d.]+)', text)
    assert [float(cell) for cell in cells] == pytest.approx(shares.ravel(), abs=0.051)


def test_confusions_are_shown_where_they_are_largest(evaluation: Evaluation, pairs: Pairs) -> None:
    counts = evaluation.confusion.counts.numpy()
    found = large_confusions(evaluation)
    off = sorted((counts[t, p] for t in range(3) for p in range(3) if t != p), reverse=True)
    assert [counts[f.true, f.predicted] for f in found] == off[: len(found)]
    assert len(found) == sum(count >= 0.005 * counts.sum() for count in off)
    for each in found:
        assert each.of_all == counts[each.true, each.predicted] / counts.sum()
        assert each.share == counts[each.true, each.predicted] / counts[each.true].sum()
        most = max(((true == each.true) & (shown == each.predicted)).sum() for shown, true in pairs.values())
        window = each.window
        assert ((window.truth == each.true) & (window.prediction == each.predicted)).sum() == most  # one window each
        shown, true = pairs[window.name]
        np.testing.assert_array_equal(window.prediction, shown)
        np.testing.assert_array_equal(window.truth, true)


def test_places_lead_to_maps_of_their_images(report: Path, evaluation: Evaluation, pairs: Pairs) -> None:
    listed = json.loads((report / "places.json").read_text())
    assert [(p["image"], p["top"], p["left"]) for p in listed["places"]] == [
        (w.name, w.top, w.left) for w in evaluation.worst
    ]
    for image in listed["images"]:
        shown, true = pairs[image["name"]]
        np.testing.assert_array_equal(np.asarray(Image.open(report / image["map"])), shown)
        np.testing.assert_array_equal(np.asarray(Image.open(report / image["truth"])), true)
        assert Path(image["file"]).is_file()


def test_markdown_tables_are_regular(report: Path, evaluation: Evaluation) -> None:
    text = (report / "scores.md").read_text()
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        assert len({line.count("|") for line in block.splitlines()}) == 1
    assert f"| {percent(evaluation.scores.miou)} |" in text
    assert Table("t", ("a|b",), (("c",),)).markdown().splitlines()[2] == "| a&#124;b |"


def test_undefined_is_a_dash() -> None:
    assert [percent(value) for value in (None, float("nan"), 0.12345, 1.0)] == ["-", "-", "12.35", "100.00"]


def test_error_panel_marks_the_wrong_pixels(evaluation: Evaluation) -> None:
    window = evaluation.worst[0]
    palette = evaluation.conditions.protocol.palette
    picture = np.asarray(draw_worst(window, evaluation.conditions.protocol.classes, palette))
    height, width = window.truth.shape
    factor = -(-256 // max(height, width))
    left, top = width * factor + 8, (height * factor) + 2 * 24
    error = picture[top : top + height * factor : factor, left : left + width * factor : factor]
    wrong = (window.truth != window.prediction) & (window.truth != 255)
    np.testing.assert_array_equal((error == wrong_colour(palette)).all(-1), wrong)
    np.testing.assert_array_equal((error == 0).all(-1), window.truth == 255)
    truth = picture[24 : 24 + height * factor : factor, left : left + width * factor : factor]
    np.testing.assert_array_equal(truth[window.truth == 1][0], palette[1])


def test_the_page_says_what_wrong_looks_like(report: Path, evaluation: Evaluation) -> None:
    colour = "#{:02x}{:02x}{:02x}".format(*wrong_colour(evaluation.conditions.protocol.palette))
    text = (report / "report.html").read_text()
    assert re.search(rf'fill="{colour}"/></svg>\s*wrong</li>', text) and "wrong is red" not in text


def test_outlines_are_a_pixel_of_the_picture_not_of_the_window() -> None:
    """A window of 8 px is enlarged 32 times; a class of one pixel in it still shows its colour."""
    ids = np.zeros((8, 8), np.uint8)
    ids[3, 4] = 1
    palette = ((200, 180, 100), (80, 0, 40))
    picture = np.asarray(draw_classes(ids, palette, (0, 0, 0)))
    assert picture.shape == (256, 256, 3)
    inside = picture[3 * 32 : 4 * 32, 4 * 32 : 5 * 32]
    assert (inside[:-1, :-1] == palette[1]).all() and (inside[-1] == (40, 0, 20)).all()
    assert (picture[96:128, 127] == (100, 90, 50)).all() and (picture[:90] == palette[0]).all()


@pytest.mark.parametrize("classes", [1, 2, 40, 254])
def test_confusion_pictures_of_any_size(classes: int) -> None:
    counts = np.eye(classes, dtype=np.int64) * 7
    picture = np.asarray(draw_confusion(counts, [f"class_{i}" for i in range(classes)]))
    assert max(picture.shape) < 4200
    blue = (picture == (31, 90, 165)).all(-1).sum()  # cells of share one
    cell = max(14, min(76, 900 // classes))
    assert blue > 0.6 * classes * (cell - 1) ** 2


def test_images_without_a_labelled_pixel_have_a_report_and_no_scores(perfect: Folder, tmp_path: Path) -> None:
    for record in perfect.records("val"):
        Image.fromarray(np.full((record.height, record.width), 255, np.uint8)).save(record.masks["full"])
    evaluation = evaluate(colour_model(), perfect, settings=Settings(tile=0))
    write_report(evaluation, tmp_path / "report")
    values = json.loads((tmp_path / "report" / "scores.json").read_text())
    assert values["scores"]["mIoU"] is None and values["scores"]["OA"] is None


def test_an_empty_class_is_no_number_anywhere(perfect: Folder, tmp_path: Path) -> None:
    """A class that neither occurs nor is predicted."""
    protocol = perfect.protocol
    perfect.protocol = dataclasses.replace(
        protocol,
        classes=(*protocol.classes, "ice"),
        scored=(*protocol.scored, "ice"),
        palette=(*protocol.palette, (0, 0, 9)),
    )
    model = colour_model(classes=(*protocol.classes, "ice"))
    model.colours.data[:3] = colour_model().colours.data
    model.colours.data[3] = 99.0
    model.info = dataclasses.replace(model.info, mean=colour_model().info.mean, std=colour_model().info.std)
    evaluation = evaluate(model, perfect, settings=Settings(tile=0))
    write_report(evaluation, tmp_path / "report")
    values = json.loads((tmp_path / "report" / "scores.json").read_text())
    assert values["scores"]["IoU"]["ice"] is None and values["scores"]["mIoU"] == 1.0
    assert "| ice | 0.00 | - |" in (tmp_path / "report" / "scores.md").read_text()
    assert not list((tmp_path / "report").glob("worst*"))  # nothing was wrong


def test_a_place_that_is_taken_is_refused(evaluation: Evaluation, report: Path) -> None:
    before = sorted(report.rglob("*"))
    with pytest.raises(UserError, match="is not an empty folder; choose another place"):
        write_report(evaluation, report)
    assert sorted(report.rglob("*")) == before


def test_reserved_leaves_nothing_when_nothing_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ZeroDivisionError), reserved(None, "data-model", first=True) as out:
        assert out == Path("reports/data-model-1") and out.is_dir()
        raise ZeroDivisionError
    assert not out.exists()
    for number in (1, 2):
        with reserved(None, "data-model", first=True) as out:
            (out / "scores.json").touch()
        assert out == Path(f"reports/data-model-{number}") and out.is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot make the report folder"), reserved("file/inside", "x", first=True):
        pass


def test_the_caption_of_a_small_confusion_matrix_is_whole() -> None:
    picture = np.asarray(draw_confusion(np.eye(2, dtype=np.int64), ["a", "b"])).astype(int)
    caption = np.argwhere((picture[-28:] < 200).all(-1))  # its ink
    assert caption[:, 1].max() < picture.shape[1] - 8 and caption[:, 1].min() > 4


def test_pixels_without_labels_do_not_look_like_a_class(evaluation: Evaluation) -> None:
    window = evaluation.worst[0]
    names = evaluation.conditions.protocol.classes
    palette = ((0, 0, 0), (128, 128, 128), (200, 0, 0))
    truth = np.full_like(window.truth, 255)
    picture = np.asarray(draw_worst(dataclasses.replace(window, truth=truth), names, palette))
    height, width = window.truth.shape
    factor = -(-256 // max(height, width))
    shown = picture[24 + factor * height // 2, 8 + factor * width * 3 // 2]  # in the middle of the truth
    assert tuple(shown) == unlabelled_colour((*palette, wrong_colour(palette))) == (255, 0, 255)
