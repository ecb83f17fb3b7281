"""The folder: complete, its links alive, its pictures true, and useful without matplotlib."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crispseg.analysis import Analysis, Settings, analyze, write_analysis
from crispseg.analysis.pictures import draw_allocation, draw_errors, grid, heat, shades, wrong_where
from crispseg.analysis.plots import MISSING, draw_plots
from crispseg.analysis.tables import all_tables
from crispseg.data.folder import Folder
from crispseg.errors import UserError
from crispseg.models.base import SegmentationModel
from tests.analysis.conftest import make_model

KINDS = ("activation", "activity", "allocation", "errors")


@pytest.fixture(scope="module")
def analysis(crisp: SegmentationModel, folder: Folder) -> Analysis:
    other = make_model(dco=False, prototypes=2)
    chosen = Settings(pictures=1, focus="water")
    return analyze(
        crisp, folder, "val", against=other, settings=chosen, device="cpu", source="a <b>", notes=["mind & <heed>"]
    )


@pytest.fixture(scope="module")
def report(analysis: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "analysis"
    assert write_analysis(analysis, out) == out / "analysis.html"
    return out


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_all_files_are_there_and_name_the_protocol(report: Path, analysis: Analysis) -> None:
    name = analysis.looks[0].name
    assert files(report) == [
        *("analysis.html", "analysis.json", "analysis.md", "gates.png"),
        *(f"images/01-{name}-{kind}.jpg" for kind in KINDS),
        *("prototypes.png", "spectrum.csv", "spectrum.png"),
    ]
    for text in ("analysis.html", "analysis.json", "analysis.md", "spectrum.csv"):
        assert analysis.conditions.line in (report / text).read_text()
    for path in report.rglob("*.[pj][np]g"):
        with Image.open(path) as picture:
            picture.load()
            assert min(picture.size) > 100


def test_the_page_needs_nothing_but_its_folder(report: Path) -> None:
    text = (report / "analysis.html").read_text()
    assert not re.search(r"https?:|<script [^>]*src|<link|@import|url\(", text)
    links = set(re.findall(r'(?:src|href)="([^"]*)"', text))
    pictures = {name for name in files(report) if name.endswith((".png", ".jpg"))}
    assert links == pictures
    assert "a &lt;b&gt;" in text and "mind &amp; &lt;heed&gt;" in text and "<heed>" not in text


def test_images_called_nearly_alike_have_their_own_pictures(analysis: Analysis, tmp_path: Path) -> None:
    (look,) = analysis.looks
    right = dict.fromkeys(look.predictions, look.truth)
    other = dataclasses.replace(look, name="a_b", predictions=right)
    looks = (dataclasses.replace(look, name="a b"), other)
    write_analysis(dataclasses.replace(analysis, looks=looks), tmp_path / "out")
    first, second = sorted((tmp_path / "out" / "images").glob("*-errors.jpg"))
    assert first.read_bytes() != second.read_bytes()
    text = (tmp_path / "out" / "analysis.html").read_text()
    assert 0 < text.index("a b<") < text.index(first.name) < text.index("a_b<") < text.index(second.name)


def test_json_and_csv_say_the_same(report: Path, analysis: Analysis) -> None:
    text = (report / "analysis.json").read_text()
    values = json.loads(text)
    assert values == analysis.to_dict() and "NaN" not in text
    rows = list(csv.DictReader(io.StringIO((report / "spectrum.csv").read_text())))
    assert len(rows) == 4 * 2 * 10 * len(analysis.names)
    for row in rows[::7]:
        block = values["variants"][row["variant"]]["spectrum"][row["place"]][row["block"]]
        assert float(row["ratio"]) == pytest.approx(block["images"][values["images"].index(row["image"])], rel=1e-6)


def test_markdown_tables_are_regular(report: Path, analysis: Analysis) -> None:
    text = (report / "analysis.md").read_text()
    blocks = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert len(blocks) == len(all_tables(analysis)) == 8
    for block in blocks:
        assert len({line.count("|") for line in block.splitlines()}) == 1
    spectrum = analysis.variants["as trained"].spectrum
    assert spectrum is not None
    values = spectrum.mixer["stage 2 block 1"]
    assert f"| stage 2 block 1 | {values.mean():.5f} ± {values.std(ddof=1):.5f} |" in text


def test_error_panels_mark_the_wrong_pixels(analysis: Analysis) -> None:
    look, protocol = analysis.looks[0], analysis.conditions.protocol
    picture = np.asarray(draw_errors(look, protocol.classes, protocol.palette))
    height, width = look.truth.shape
    factor = 420 // max(height, width)
    row, column = height * factor + 24, width * factor + 8

    def panel(r: int, c: int) -> np.ndarray:
        return picture[r * row + 24 : (r + 1) * row : factor, c * column : c * column + width * factor : factor]

    for r, label in ((1, "as trained"), (2, "against")):
        predicted = look.predictions[label]
        wrong = predicted != look.truth
        np.testing.assert_array_equal((panel(r, 1) == (255, 150, 0)).all(-1), wrong & look.band)
        np.testing.assert_array_equal((panel(r, 1) == (214, 20, 40)).all(-1), wrong & ~look.band)
        np.testing.assert_array_equal(panel(r, 0), np.array(protocol.palette, np.uint8)[predicted])
        np.testing.assert_array_equal(panel(r, 2)[wrong], np.array(protocol.palette, np.uint8)[predicted[wrong]])
    own, other = (look.predictions[label] != look.truth for label in ("as trained", "against"))
    who = wrong_where(look, look.predictions["as trained"], look.predictions["against"])
    np.testing.assert_array_equal((who == (70, 70, 70)).all(-1), own & other)
    np.testing.assert_array_equal((who == (20, 130, 60)).all(-1), other & ~own)
    np.testing.assert_array_equal((who == (150, 40, 170)).all(-1), own & ~other)


def test_every_winner_has_its_own_shade(analysis: Analysis) -> None:
    look, protocol = analysis.looks[0], analysis.conditions.protocol
    assert look.won is not None
    picture = np.asarray(draw_allocation(look, protocol.classes, protocol.palette))
    height, width = look.truth.shape
    factor = 420 // max(height, width)
    left = 2 * (width * factor + 8)
    drawn = picture[24 : 24 + height * factor : factor, left : left + width * factor : factor].reshape(-1, 3)
    winners = (look.predictions["as trained"].astype(int) * 3 + look.won).ravel()
    pairs = {(int(w), tuple(colour)) for w, colour in zip(winners, drawn.tolist(), strict=True)}
    assert len(pairs) == len({w for w, _ in pairs}) == len({colour for _, colour in pairs})
    table = shades(12, 5).reshape(-1, 3).astype(int)
    apart = np.abs(table[:, None] - table[None]).sum(-1) + 999 * np.eye(60, dtype=int)
    assert apart.min() > 20


def test_heat_runs_from_dark_to_light() -> None:
    shown = heat(np.linspace(-1, 2, 7, dtype=np.float32)[None], 0, 1)[0].astype(int).sum(-1)
    assert (np.diff(shown) >= 0).all() and shown[0] == shown[1] == shown[2] and shown[-1] > 2 * shown[0]
    assert heat(np.zeros((2, 2), np.float32), 0, 0).shape == (2, 2, 3)


@pytest.mark.parametrize("size", [(1, 1), (3, 1000), (700, 2), (210, 211), (500, 400)])
def test_pictures_of_any_size(size: tuple[int, int]) -> None:
    panel = np.full((*size, 3), 77, np.uint8)
    picture = np.asarray(grid({"a": panel, "b": panel, "c": panel}, 2, {"x": (1, 2, 3)}))
    assert (picture == 77).all(-1).any() and max(picture.shape) < 1200


def test_without_matplotlib_the_page_says_what_to_install(
    analysis: Analysis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    write_analysis(analysis, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.png"))
    assert "pip install" in MISSING and MISSING in (tmp_path / "out" / "analysis.md").read_text()
    text = (tmp_path / "out" / "analysis.html").read_text()
    assert all((tmp_path / "out" / link).is_file() for link in re.findall(r'(?:src|href)="([^"]*)"', text))


@pytest.mark.filterwarnings("error")
def test_a_rival_beside_a_model_with_blocks_is_drawn(analysis: Analysis) -> None:
    pytest.importorskip("matplotlib")
    rival = dataclasses.replace(analysis.variants["as trained"], spectrum=None)
    variants = {"as trained": rival, "against": analysis.variants["against"]}
    assert "spectrum.png" in draw_plots(dataclasses.replace(analysis, variants=variants, gates={}, prototypes=None))


def test_one_image_one_prototype(folder: Folder, tmp_path: Path) -> None:
    """No spread over images, no choice among prototypes: dashes, no numbers that are none."""
    found = analyze(
        make_model(prototypes=1), folder, "val", settings=Settings(images=1, pictures=1, limit=33), device="cpu"
    )
    write_analysis(found, tmp_path / "out")
    assert "nan" not in (tmp_path / "out" / "analysis.md").read_text().lower().replace("nano", "")
    assert json.loads((tmp_path / "out" / "analysis.json").read_text())["prototypes"]["orthogonality"] == 0


def test_a_place_that_is_taken_is_refused(analysis: Analysis, report: Path) -> None:
    before = files(report)
    with pytest.raises(UserError, match="is not an empty folder"):
        write_analysis(analysis, report)
    assert files(report) == before


def test_long_titles_are_wrapped_and_not_cut() -> None:
    panel = np.full((300, 120, 3), 77, np.uint8)
    picture = np.asarray(grid({"image": panel, "winning prototype of the predicted class": panel}, 2, {"x": (1, 2, 3)}))
    first = int(np.flatnonzero((picture == 77).all(-1).sum(1) > 200)[0])  # row of the panels
    titles = picture[:first].astype(int)
    inked = np.flatnonzero((titles < 120).all(-1).any(0))
    assert len(titles) > 40 and inked.max() < picture.shape[1] - 2


def test_both_models_mixers_and_every_gate_are_told(analysis: Analysis, folder: Folder) -> None:
    tables = {table.title: table for table in all_tables(analysis)}
    assert tables["How much the mixers vary"].header == (
        "block",
        "var(y^) / var(D V), as trained",
        "var(y^) / var(D V), against",
    )
    assert set(analysis.to_dict()["liveliness"]) == {"as trained", "against"}
    assert tables["Gates: as trained"].header[-4:] == tuple(f"{g} travelled" for g in ("lambda", "omega", "s", "t"))
    assert "Temperatures: as trained" not in tables
    selective = analyze(make_model(fusion="selective"), folder, "val", settings=Settings(images=1, pictures=0))
    assert "Temperatures: as trained" in {table.title for table in all_tables(selective)}
