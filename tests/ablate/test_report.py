import dataclasses
import json

import pytest
from PIL import Image

from crispseg.ablate import plot
from crispseg.ablate.plan import DataSet, Place, make_plan
from crispseg.ablate.report import report
from crispseg.ablate.store import Store
from crispseg.ablate.table import Row, Table
from crispseg.errors import UserError


def result(last, best=None, boundary=0.5):
    scores = {"mIoU": last, "mF1": last + 0.1, "BF@3px": boundary}
    best = scores if best is None else {**scores, "mIoU": best}
    return {"protocol": "p #1", "steps": 7, "seed": 0, "last": scores, "best": best}


TABLE = Table("T", (Row("a", paper={"mIoU": 87.3}), Row("b", {"seed": 9, "loss": {"dice": 1.0}})), name="t")


def make(tmp_path, labels, values, table=TABLE):
    """A plan and its store, with results for the places named."""
    sets = [DataSet(label, {"data": {"path": label}}) for label in labels]
    plan = make_plan([table], sets, [], [0, 1], tmp_path)
    store = Store(tmp_path)
    for (row, label, seed), value in values.items():
        run = plan.places[Place(table.name, row, label, seed)]
        run.folder.mkdir(parents=True)
        run.result_file.write_text(json.dumps(value))
    store.collect(plan.runs)
    return plan, store


def test_scores_differences_and_the_paper(tmp_path):
    values = {
        ("a", "d", 0): result(0.5),
        ("a", "d", 1): result(0.7),
        ("b", "d", 0): result(0.51),
        ("b", "d", 1): result(0.73),
    }
    plan, store = make(tmp_path, ["d"], values)
    text = report(TABLE, plan, store, None)
    assert "|  | runs | mIoU | mF1 | BF@3px | paper's mIoU |" in text
    assert "| a | 2 | 60.00 ± 14.14 | 70.00 ± 14.14 | 50.00 ± 0.00 | 87.3 |" in text
    assert "| difference | to | mIoU | BF@3px | pairs |" in text
    assert "| b | a | +2.00 ± 1.00 [-10.71, +14.71] | +0.00 ± 0.00 [+0.00, +0.00] | 2 |" in text
    assert "p #1" in text and "7 steps" in text and "Missing" not in text
    assert (tmp_path / "t.md").read_text() == text
    assert "\n\nStart: all rows from random weights (no pretrained backbone" in text
    written = json.loads((tmp_path / "t.json").read_text())
    assert written["start"] == {"d": {"a": "none", "b": "none"}} and not written["warnings"]
    assert {run["start"] for run in json.loads(store.path.read_text())["runs"].values()} == {"none"}
    row = written["rows"][1]
    assert row["differences"]["d"]["mIoU"] == {
        "mean": pytest.approx(2),
        "error": pytest.approx(1),
        "pairs": 2,
        "clear": False,
        "interval": [pytest.approx(-10.7062, abs=1e-3), pytest.approx(14.7062, abs=1e-3)],  # t of one degree: 12.7062
    }
    assert row["scores"]["d"]["mIoU"]["values"] == [51, 73]


def test_selected_weights_have_a_column_where_they_differ(tmp_path):
    plan, store = make(tmp_path, ["d"], {("a", "d", 0): result(0.5, best=0.6)})
    text = report(TABLE, plan, store, None)
    assert "| a | 1 of 2 | 50.00 | 60.00 | 50.00 | 60.00 | 87.3 |" in text and "selected on the images" in text


def test_several_data_sets_are_columns_and_are_pooled(tmp_path):
    values = {
        (row, label, seed): result(0.5 + 0.1 * seed + 0.02 * (row == "b") * (1 + (label == "e")))
        for row in "ab"
        for label in "de"
        for seed in (0, 1)
    }
    plan, store = make(tmp_path, ["d", "e"], values)
    text = report(TABLE, plan, store, None)
    assert "|  | d: runs | d: mIoU | d: mF1 | d: BF@3px | e: runs |" in text
    # differences 2, 2, 4 and 4: mean 3, variance 4 / 3, standard error sqrt(4 / 3 / 4)
    assert "| +3.00 ± 0.58 [+1.16, +4.84] * | +0.00 ± 0.00 [+0.00, +0.00] | 4 |" in text


def test_a_table_may_ask_for_other_scores(tmp_path):
    table = dataclasses.replace(TABLE, scores=("BF@3px", "mIoU"))
    values = {(row, "d", seed): result(0.5 + 0.1 * (row == "b")) for row in "ab" for seed in (0, 1)}
    plan, store = make(tmp_path, ["d"], values)
    text = report(table, plan, store, None)
    assert "|  | runs | BF@3px | mIoU | paper's mIoU |" in text
    assert "| difference | to | BF@3px | mIoU | pairs |" in text


def test_the_papers_numbers_of_a_data_set_stand_beside_ours_on_it(tmp_path):
    rows = (
        Row("a", paper={"potsdam": {"mBF": 66.69}, "loveda": {"mBF": 19.99}, "params M": 56}),
        Row("b", {"loss": {"dice": 1.0}}, paper={"potsdam": {"mBF": 70.38}}),
    )
    table = dataclasses.replace(TABLE, rows=rows, scores=("BF@3px",))
    labels = ["potsdam/paper5", "vaihingen_fragment/fold0"]
    values = {(row, label, seed): result(0.5) for row in "ab" for label in labels for seed in (0, 1)}
    plan, store = make(tmp_path, labels, values, table)
    heading, _, a, b = report(table, plan, store, None).splitlines()[2:6]
    ours, other = (f"{label}: runs | {label}: BF@3px" for label in labels)
    assert heading == f"|  | {ours} | {labels[0]}: paper's mBF | {other} | paper's params M | paper's loveda mBF |"
    assert a == "| a | 2 | 50.00 ± 0.00 | 66.69 | 2 | 50.00 ± 0.00 | 56 | 19.99 |"
    assert b == "| b | 2 | 50.00 ± 0.00 | 70.38 | 2 | 50.00 ± 0.00 |  |  |"


def test_rows_that_were_scored_on_something_else_are_warned_of(tmp_path):
    values = {(row, label, 0): result(0.5) for row in "ab" for label in "de"}
    values["b", "e", 0]["protocol"] = "q #2"
    plan, store = make(tmp_path, ["d", "e"], values)
    text = report(TABLE, plan, store, None)
    (warning,) = json.loads((tmp_path / "t.json").read_text())["warnings"]
    assert warning.startswith("rows of e are scored differently") and warning.endswith(": 'a' on p #1; 'b' on q #2")
    assert f"Warning: {warning}.\n" in text


def test_what_is_missing_is_said(tmp_path):
    plan, store = make(tmp_path, ["d"], {("a", "d", 0): result(0.5)})
    runs = plan.places
    store.fail(runs[Place("t", "b", "d", 0)], "crisp: it broke")
    runs[Place("t", "b", "d", 1)].folder.mkdir()
    text = report(TABLE, plan, store, None)
    assert "| a | 1 of 2 | 50.00 |" in text
    assert "| b | 0 of 2: failed, unfinished | - | - | - |  |" in text
    assert "Missing are 3 of 4 runs:" in text
    for line in ("a, d, seed 1: not run", "b, d, seed 0: failed: crisp: it broke", "b, d, seed 1: unfinished"):
        assert f"- {line}\n" in text
    states = [run["state"] for row in json.loads((tmp_path / "t.json").read_text())["rows"] for run in row["runs"]]
    assert states == ["finished", "not run", "failed: crisp: it broke", "unfinished"]


def test_nothing_yet(tmp_path):
    plan, store = make(tmp_path, ["d"], {})
    assert "No run is finished." in report(TABLE, plan, store, None)


def test_results_alone_are_enough(tmp_path):
    """results.json in another folder, without the runs, makes the same table."""
    values = {("a", "d", 0): result(0.5), ("b", "d", 0): result(0.6)}
    plan, store = make(tmp_path / "there", ["d"], values)
    text = report(TABLE, plan, store, None)
    here = tmp_path / "here"
    here.mkdir()
    (here / "results.json").write_text((tmp_path / "there" / "results.json").read_text())
    sets = [DataSet("d", {"data": {"path": "d"}})]
    plan = make_plan([TABLE], sets, [], [0, 1], here)
    assert report(TABLE, plan, Store(here), None) == text
    (here / "results.json").write_text("[]")
    with pytest.raises(UserError, match="results.json is not a file that `crisp ablate` wrote"):
        Store(here)


def test_accuracy_against_latency(tmp_path):
    pytest.importorskip("matplotlib")
    points = [plot.Point(f"network {i}", 5.0, 60.0 + i / 10, 0.5, i == 0) for i in range(9)]
    assert plot.draw(points, "latency", "mIoU", tmp_path / "p.png") == ""
    assert Image.open(tmp_path / "p.png").size == (960, 660)
    assert plot.draw([], "latency", "mIoU", tmp_path / "none.png") and not (tmp_path / "none.png").exists()
