import pytest
import torch
import yaml

from crispseg.ablate.plan import DataSet, make_plan, read_data_sets
from crispseg.ablate.table import Row, Table, read_table, row_values
from crispseg.configs import find_table, names
from crispseg.data import known
from crispseg.errors import UserError
from crispseg.files import write_json
from crispseg.models.registry import create_model
from crispseg.train.config import config_from
from tests.train import tiny

DATA = ["ablation_dubai", "ablation_vaihingen"]


def write(path, **values):
    path.write_text(yaml.safe_dump(values))
    return path


def test_the_papers_boundary_scores_are_there_by_data_set():
    sharpness, band = (read_table(find_table(name)) for name in ("sharpness", "boundary"))
    assert [row.paper_on("loveda") for row in sharpness.rows] == [{"mBF": 19.99}, {"mBF": 22.39}]
    assert [row.paper_on("potsdam")["mBF"] for row in sharpness.rows] == [66.69, 70.38]
    assert [row.paper_on("potsdam")["mBF"] for row in band.rows] == [86.98, 82.32, 89.53]
    assert all(not row.paper_on("") for row in (*sharpness.rows, *band.rows))


@pytest.mark.parametrize(("name", "data"), [("classes", known.ISPRS), ("classes_loveda", known.LOVEDA)])
def test_the_papers_scores_by_class_are_of_the_sets_classes(name, data):
    table = read_table(find_table(name))
    classes = [score.partition(" ")[2] for score in table.scores[:-1]]
    assert classes == [one for one in data.names if one != "clutter"]
    for numbers in table.rows[1].paper.values():
        *quoted, average = numbers.values()
        assert list(numbers)[:-1] == [one.replace("_", " ") for one in classes]
        assert sum(quoted) / len(quoted) == pytest.approx(average, abs=0.015)


def test_rows_lie_over_the_table_and_the_base():
    table = Table("T", (Row("a", {"model": {"options": {"dco": True}}}),), set={"model": {"name": "crisp_{size}"}})
    values = row_values(table, table.rows[0], {"model": {"name": "x", "options": {"state": 4}}, "seed": 9})
    assert values == {"model": {"name": "crisp_tiny", "options": {"state": 4, "dco": True}}, "seed": 9}


def test_whom_a_row_is_compared_with(tmp_path):
    rows = [{"name": "a"}, {"name": "b"}, {"name": "c", "against": "b"}]
    table = read_table(write(tmp_path / "t.yaml", title="T", rows=rows), size="nano")
    assert (table.name, table.size) == ("t", "nano")
    assert [table.opponent(row) for row in table.rows] == [None, table.rows[0], table.rows[1]]
    table = read_table(write(tmp_path / "t.yaml", title="T", rows=rows, baseline="c"))
    assert [table.opponent(row).name for row in table.rows] == ["c", "c", "b"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rows": []}, "no rows"),
        ({"rows": [{"name": True}]}, "in YAML on, off, yes and no need quotes"),
        ({"rows": [{"name": "a"}], "scores": ["mIou"]}, "unknown score 'mIou'; did you mean 'mIoU'"),
        ({"rows": [{"name": "a"}], "scores": ["IoU"]}, "unknown score 'IoU'"),
        ({"rows": [{"name": "a"}], "scores": []}, "scores is empty"),
        ({"rows": [{"name": "a"}, {"name": "a"}]}, "two rows are called 'a'"),
        ({"rows": [{"name": "alpha"}], "baseline": "alpah"}, "did you mean 'alpha'"),
        ({"rows": [{"name": "a", "against": "zzz"}]}, "unknown row 'zzz'"),
        ({"rows": [{"name": "a", "sets": {}}]}, "did you mean"),
    ],
)
def test_tables_that_cannot_be(tmp_path, values, said):
    with pytest.raises(UserError, match=said):
        read_table(write(tmp_path / "t.yaml", title="T", **values))


@pytest.mark.parametrize("name", names("table"))
def test_every_shipped_table_can_be_planned(name, tmp_path):
    """Each row is a config that the program takes, and another network or loss than the other rows."""
    table = read_table(find_table(name))
    plan = make_plan([table], read_data_sets(DATA), [], [0, 1], tmp_path)
    assert len(plan.runs) == len(plan.places) == len(table.rows) * 2 * 2
    assert {run.config.schedule.steps for run in plan.runs} == {300}


def test_the_rows_say_what_their_names_say():
    def row(table, name):
        found = read_table(find_table(table), "nano")
        (chosen,) = (row for row in found.rows if row.name == name)
        config = config_from(row_values(found, chosen, {}))
        with torch.device("meta"):  # structure without numbers
            return config, create_model(config.model.name, 5, 3, **config.model.options)

    def mixer(model):
        return model.backbone.layers[0].blocks[0].attn

    _, model = row("dco", "high-pass and DC/HC")
    assert mixer(model).dco.lambda_ is None and mixer(model).dco.omega is not None and mixer(model).dco.s is not None
    assert mixer(model).rule.fusion == "normalized"
    assert mixer(row("dco", "none")[1]).dco is None
    config, model = row("components", "OMP, DCO, margin")
    assert (config.loss.orth, config.loss.margin > 0) == (0.0, True)
    assert model.backbone.layers[3].blocks[0].attn.dco is not None
    assert row("prototypes", "K = 5")[1].head.config.prototypes == 5
    assert mixer(row("main", "VSSD + UPerHead")[1]).rule.fusion == "raw"
    assert mixer(row("readouts", "unnormalized")[1]).rule.residual_readout == "unnormalized"
    assert mixer(row("skip", "before")[1]).rule.skip == "before"
    model = row("fusion", "raw, DCO")[1]
    assert mixer(model).rule.fusion == "raw" and mixer(model).dco is not None
    assert row("neck", "concat")[1].head.config.neck == "concat"
    assert row("claim", "OMP")[0].model.name == "crisp_tiny"
    assert row("rivals", "BANet")[0].loss.dice == 0 and row("rivals", "UNetFormer")[0].loss.dice == 1


def test_the_baseline_of_many_tables_is_one_run(tmp_path):
    tables = [read_table(find_table(name), "nano") for name in ("components", "skip", "neck")]
    plan = make_plan(tables, read_data_sets([DATA[0]]), [], [0], tmp_path)
    assert (len(plan.places), len(plan.runs)) == (11, 9)


def test_data_sets_by_config_and_folder(tmp_path, folder):
    config = write(tmp_path / "c.yaml", data={"path": "nowhere", "protocol": "dubai/own5"}, crop=64)
    sets = read_data_sets([f"{config}={folder}", str(folder)])
    assert [one.label for one in sets] == ["dubai/own5", "squares"]
    assert sets[0].values == {"data": {"path": str(folder), "protocol": "dubai/own5"}, "crop": 64}
    other = write(tmp_path / "other.yaml", data={"protocol": "dubai/own5"})
    assert [one.label for one in read_data_sets([str(config), str(other)])] == ["c", "other"]
    with pytest.raises(UserError, match="same twice"):
        read_data_sets([str(config), str(config)])
    with pytest.raises(UserError, match="key=value words go before --data"):
        read_data_sets(["optimizer.lr=1"])


def test_two_tables_of_one_name_are_refused(tmp_path):
    table = Table("T", (Row("a"),), name="t")
    with pytest.raises(UserError, match="two tables are called 't'"):
        make_plan([table, table], [DataSet("d", {})], [], [0], tmp_path)


def test_runs_are_scored_on_the_split_of_their_protocol(tmp_path):
    table = Table("A table", (Row("one"),), name="a")
    for protocol, score in (("potsdam/paper5", "protocol"), ("dubai/own5", "val")):
        plan = make_plan([table], [DataSet(protocol, {"data": {"protocol": protocol}})], [], [0], tmp_path)
        assert [run.config.score for run in plan.runs] == [score]


def scores(table, data, out, *words):
    plan = make_plan([table], read_data_sets([str(data)]), words, [0], out)
    return [run.config.score for run in plan.runs], plan.warnings(table)


def test_folders_without_a_named_protocol_are_scored_on_their_own_test_images(tmp_path):
    table = Table("A table", (Row("one"),), name="a")
    folder = tiny.make_folder(tmp_path / "squares")
    assert scores(table, folder, tmp_path) == (["val"], [])
    split = folder / "split.csv"
    split.write_text(split.read_text().replace("scene3,train", "scene3, Test"))
    assert scores(table, folder, tmp_path) == (["protocol"], [])
    config = write(tmp_path / "c.yaml", data={"path": str(folder)})
    assert scores(table, config, tmp_path) == (["protocol"], [])
    split.unlink()
    assert scores(table, folder, tmp_path) == (["val"], [])
    # as `crisp prepare` leaves it: the first protocol wins over split.csv
    write_json(folder / "dataset.json", {"protocols": {"potsdam/paper5": "40802a901b"}})
    assert scores(table, folder, tmp_path) == (["protocol"], [])
    write_json(folder / "dataset.json", {"protocols": {"loveda/val7": ""}})
    assert scores(table, folder, tmp_path) == (["val"], [])


def test_a_score_on_val_that_is_asked_for_wins_and_is_said(tmp_path):
    table = Table("A table", (Row("one"),), name="a")
    said = ["potsdam/paper5 is scored on val, as asked, and not on test"]
    assert scores(table, "potsdam", tmp_path, "score=val") == (["val"], said)
    config = write(tmp_path / "mine.yaml", base="potsdam", score="val")
    assert scores(table, config, tmp_path) == (["val"], said)
    assert scores(table, config, tmp_path, "score=protocol") == (["protocol"], [])
    assert scores(table, "dubai", tmp_path, "score=val") == (["val"], [])


def test_rows_have_the_bands_of_the_images(tmp_path):
    """So that red-green-blue and infrared runs of one protocol are not taken for the same."""
    table = Table("A table", (Row("one"),), name="a")
    folder = tiny.make_folder(tmp_path / "potsdam")
    words = [f"data.path={folder}", "data.protocol=null"]
    before = make_plan([table], read_data_sets(["potsdam"]), words, [0], tmp_path)
    write_json(folder / "dataset.json", {"dataset": "potsdam", "bands": list(known.IRRG)})
    plan = make_plan([table], read_data_sets(["potsdam"]), words, [0], tmp_path)
    assert plan.runs[0].config.data.bands == known.IRRG and plan.runs[0].name != before.runs[0].name
    said = "the bands of potsdam/paper5 are near_infrared, red, green, as dataset.json says, and not red, green, blue"
    assert plan.warnings(table) == [said] and not before.warnings(table)
