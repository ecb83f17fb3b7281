"""All rows of a table start from the same, whatever they differ in."""

import pytest

from crispseg.ablate.plan import DataSet, make_plan
from crispseg.ablate.start import table_start
from crispseg.ablate.table import Row, Table, read_table
from crispseg.configs import find_table, names
from crispseg.train.config import config_from

HEADS_AND_LOSSES = ("matching", "neck", "prototypes")  # the tables whose rows all have the default backbone


def planned(table, tmp_path, words=()):
    return make_plan([table], [DataSet("d", {"data": {"path": "d"}})], words, [0, 1], tmp_path)


def rows(**models):
    return {name: config_from({"model": model}) for name, model in models.items()}


@pytest.mark.parametrize("size", ["nano", "tiny", "micro"])
@pytest.mark.parametrize("name", names("table"))
def test_every_shipped_table_starts_all_its_rows_alike(name, size, tmp_path):
    plan = planned(read_table(find_table(name), size), tmp_path)
    (weights,) = {run.config.model.weights for run in plan.runs}
    known = name in HEADS_AND_LOSSES and size != "micro"
    assert weights == (f"vssd_{size}" if known else "none")
    assert not plan.warnings(plan.tables[0])
    (line,) = plan.start_lines(plan.tables[0])
    if known:
        assert line == f"Start: all rows from the pretrained backbone vssd_{size}."
    else:
        assert line.startswith("Start: all rows from random weights (no pretrained backbone that comes along computes")


@pytest.mark.parametrize("name", names("table"))
def test_a_start_that_is_asked_for_is_every_rows(name, tmp_path):
    plan = planned(read_table(find_table(name), "nano"), tmp_path, ["model.weights=none"])
    assert {run.config.model.weights for run in plan.runs} == {"none"}
    assert plan.start_lines(plan.tables[0]) == ["Start: all rows from random weights (as asked)."]


def test_rows_that_are_told_to_differ_are_warned_of():
    start = table_start(rows(a={"name": "crisp_nano"}, b={"name": "crisp_nano", "weights": "none"}))
    assert start.weights == {"a": "vssd_nano", "b": "none"}
    assert str(start) == "'a' from the pretrained backbone vssd_nano; 'b' from random weights"
    (warning,) = start.warnings
    assert "rows start differently" in warning and "vssd_nano ('a'), random weights ('b')" in warning


def test_a_backbone_asked_for_by_name_that_is_another_function_is_warned_of():
    models = {
        str(dco): {"name": "crisp_nano", "options": {"dco": dco}, "weights": "vssd_nano"} for dco in (True, False)
    }
    start = table_start(rows(**models))
    assert str(start) == "all rows from the pretrained backbone vssd_nano (as asked)"
    (warning,) = start.warnings
    assert "vssd_nano was trained as another network than 'False':" in warning
    whole = {
        f"K = {k}": {"name": "crisp_nano", "options": {"prototypes": k}, "weights": "crisp_nano_aerial"} for k in (3, 2)
    }
    (warning,) = table_start(rows(**whole)).warnings
    assert "crisp_nano_aerial was trained as another network than 'K = 2':" in warning


def test_a_model_that_the_machine_chooses_starts_from_random_weights():
    assert set(table_start(rows(a={}, b={"options": {"prototypes": 2}})).weights.values()) == {"none"}


def test_data_sets_may_start_differently_and_each_is_said(tmp_path):
    sets = [DataSet("d", {}), DataSet("e", {"model": {"weights": "none"}})]
    table = Table("T", (Row("a"), Row("b", {"loss": {"dice": 1.0}})), name="t", set={"model": {"name": "crisp_nano"}})
    plan = make_plan([table], sets, [], [0], tmp_path)
    assert plan.start_lines(table) == [
        "Start on d: all rows from the pretrained backbone vssd_nano.",
        "Start on e: all rows from random weights (as asked).",
    ]
    assert not plan.warnings(table)
