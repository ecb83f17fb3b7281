"""`crisp eval` from its words to its report, and each mistake's sentence."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

import crispseg
from crispseg.cli import main as command
from crispseg.data.folder import Folder, open_folder
from crispseg.evaluate.opening import open_data, open_model, training_notes
from crispseg.models import registry
from crispseg.models.base import ModelInfo
from crispseg.train.data_record import describe, record_data
from tests.evaluate.conftest import Pairs, total
from tests.evaluate.toy import MEAN, NAMES, STD, ColourModel, colour_model, labels, write_folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(registry._ENTRIES, "toy_colour", registry.Entry(ColourModel, "class from colour", "", ""))


@pytest.fixture
def model(tmp_path: Path) -> str:
    colour_model().save(tmp_path / "model")
    return "model"


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What is said of a mistake: one line, no report."""
    before = set(Path().rglob("*"))
    assert command.main(["eval", *words]) == 1
    assert set(Path().rglob("*")) == before
    said = capsys.readouterr().err
    assert said.startswith("crisp: ") or "\ncrisp: " in said
    assert "Traceback" not in said
    return said.split("crisp: ")[1]


def test_one_model(model: str, folder: Folder, pairs: Pairs, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["eval", model, str(folder.root), "--tile", "32", "--overlap", "8", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    out = Path("reports/meadows-model-1")
    assert f"report: {out / 'report.html'}" in said and f"#{folder.protocol.hash}" in said
    values = json.loads((out / "scores.json").read_text())
    assert values["confusion"] == total(pairs).tolist()
    assert values["source"] == "model" and values["conditions"]["tile"] == 32
    assert f"{100 * values['headline']['mIoU']:.2f}" in said


def test_two_models(model: str, folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = colour_model()
    other.colours.data += 0.9
    other.save(tmp_path / "other")
    words = [model, "other", str(folder.root), "--split", "val", "--tta", "flip", "--out", "both", "--worst", "1"]
    assert command.main(["eval", *words]) == 0
    said = capsys.readouterr().out
    assert "A: model" in said and "B: other" in said and ("is better" in said or "within noise" in said)
    assert {path.name for path in Path("both").iterdir()} == {
        "a",
        "b",
        "comparison.html",
        "comparison.json",
        "comparison.md",
    }


def test_a_real_model_on_the_command_line(perfect: Folder, tmp_path: Path) -> None:
    nano = crispseg.create_model("crisp_nano", 3, 3)
    nano.info = ModelInfo(classes=NAMES, mean=MEAN, std=STD)
    nano.save(tmp_path / "nano")
    assert command.main(["eval", "nano", str(perfect.root), "--tile", "0", "--scales", "0.5", "1", "--out", "r"]) == 0
    values = json.loads(Path("r/scores.json").read_text())
    assert len(values["spectrum"]) == sum(len(stage.blocks) for stage in nano.backbone.layers)
    assert all(value is not None and value > 0 for value in values["spectrum"].values())


def test_mistakes(model: str, folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(folder.root)
    assert "compares two models, not 3" in refused(capsys, model, model, model, data)
    assert "there is no model folder nowhere" in refused(capsys, "nowhere", data)
    assert "there is no data folder nowhere" in refused(capsys, model, "nowhere")
    assert "the test split of" in refused(capsys, model, data, "--split", "test")
    assert "unknown protocol 'potsdam/paper6'; did you mean 'potsdam/paper5'" in refused(
        capsys, model, data, "--protocol", "potsdam/paper6"
    )
    assert "unknown test-time augmentation" in refused(capsys, model, data, "--tta", "flipp")
    assert "less than the tile size" in refused(capsys, model, data, "--tile", "32", "--overlap", "33")
    assert "tiles of 8 px are too small" in refused(capsys, model, data, "--tile", "8")
    assert "device 'abacus' cannot be used" in refused(capsys, model, data, "--device", "abacus")
    assert "is not an empty folder" in refused(capsys, model, data, "--out", model)
    colour_model(classes=("a", "b", "c", "d")).save(tmp_path / "four")
    assert "predicts 4 classes (a, b, c, d), but protocol" in refused(capsys, "four", data)
    colour_model(bands=4).save(tmp_path / "bands")
    assert "takes 4 bands, but the images of" in refused(capsys, "bands", data)
    (tmp_path / "nothing").mkdir()
    assert "nothing is not a model folder" in refused(capsys, "nothing", data)
    (tmp_path / "nothing" / "config.yaml").write_text("{}")
    assert "has no best/ yet" in refused(capsys, "nothing", data)


def test_an_unreadable_image(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_folder(tmp_path / "data", {f"site{n}": (labels(n, (40, 40)),) * 2 for n in range(3)})
    path = root / "images" / "site2.png"
    middle = path.read_bytes()
    path.write_bytes(middle[:60] + bytes(40) + middle[100:])  # the header and the end are whole
    assert "site2.png cannot be read as an image" in refused(capsys, model, "data", "--device", "cpu")


def finished_run(root: Path, data: Path, split: str | None = None, **config: object) -> Path:
    """A run folder as training leaves it, as far as it matters here."""
    opened = open_folder(data, split=split)
    protocol = opened.protocol
    model = colour_model()
    trained = f"{protocol.name} #{protocol.hash}, train split (2 images)"
    model.info = dataclasses.replace(model.info, training_data=trained)
    model.save(root / "best")
    (root / "config.yaml").write_text(yaml.safe_dump({"data": {"path": str(data), "split": split}, **config}))
    record_data(root, describe(opened))
    (root / "protocol.json").write_text(json.dumps({**dataclasses.asdict(protocol), "hash": protocol.hash}))
    return root


def test_a_run_is_scored_on_the_split_it_was_trained_with(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", {f"site{n}": (labels(n, (40, 40)),) * 2 for n in range(4)})
    (tmp_path / "other.csv").write_text("name,split\nsite0,train\nsite1,train\nsite2,val\nsite3,unused\n")
    finished_run(tmp_path / "run", root, str(tmp_path / "other.csv"))
    opened = [open_model("run")]
    assert [record.name for record in open_data("data", opened).records("val")] == ["site2"]
    assert training_notes(opened[0], open_data("data", opened), None) == []
    assert open_model("run/best").run == Path("run")
    # told to use another split, it says that training images are among those scored
    folder = open_data("data", opened, split_file=str(root / "split.csv"))
    assert training_notes(opened[0], folder, None) == [
        "2 of the 4 images were in this model's training split, e.g. site0."
    ]
    assert command.main(["eval", "run", "data", "--tile", "0", "--out", "report"]) == 0
    assert json.loads(Path("report/scores.json").read_text())["conditions"]["images"] == 1


def test_the_data_of_a_run_are_known_in_a_folder_of_another_name(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", {f"site{n}": (labels(n, (40, 40)),) * 2 for n in range(5)})
    (root / "split.csv").unlink()
    finished_run(tmp_path / "run", root, optimizer={"clip": -1.0})  # which no training would take today
    opened = [open_model("run")]
    before = open_data("data", opened).protocol
    moved = root.rename(tmp_path / "with another name")
    write_folder(tmp_path / "new", {f"new{n}": (labels(n + 9, (40, 40)),) * 2 for n in range(4)})
    for file in [*Path("new").rglob("new*.png")]:  # more images, so that a split made now would be another
        file.rename(moved / file.relative_to("new"))
    folder = open_data(str(moved), opened)
    assert folder.protocol == before
    assert training_notes(opened[0], folder, None) == [
        f"These are the images of the model's training, then in {root}; they are split as they were."
    ]
    (moved / "images" / "site0.png").unlink()  # no longer the same data: split anew, and what was seen is told
    (moved / "masks" / "site0.png").unlink()
    for kind in ("images", "masks"):
        (moved / kind / f"{before.train[1]}.png").rename(moved / kind / "renamed.png")
    folder = open_data(str(moved), opened, split_file=str(_all_in_val(moved)))
    known = [name for name in before.train if name not in ("site0", before.train[1])] + ["renamed"]
    said = training_notes(opened[0], folder, None)[0]
    assert said.startswith(f"{len(known)} of the 8 images were in this model's training split, e.g.")


def _all_in_val(data: Path) -> Path:
    names = sorted(path.stem for path in (data / "images").iterdir())
    Path("all.csv").write_text("name,split\n" + "".join(f"{name},val\n" for name in names))
    return Path("all.csv")


def test_what_a_card_says_of_its_training_is_passed_on(tmp_path: Path, folder: Folder) -> None:
    model = colour_model()
    model.info = dataclasses.replace(model.info, training_data="elsewhere #123, train split")
    model.save(tmp_path / "model")
    said = training_notes(open_model("model"), folder, "val")
    assert said == ["The model was trained on elsewhere #123, train split."]
