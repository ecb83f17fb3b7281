import json
import statistics

import pytest
import yaml

from crispseg.cli import main
from crispseg.errors import UserError
from crispseg.train.ablate import plan_jobs, report
from crispseg.train.table import Row, Table, as_markdown, read_table, row_values, summarise
from tests.train import tiny


def result(last, best, seed=0):
    scores = {"mIoU": last, "mF1": last + 0.1, "BF@3px": 0.5}
    return {"protocol": "p #1", "steps": 7, "seed": seed, "last": scores, "best": {**scores, "mIoU": best}}


def test_mean_and_spread():
    values = [0.51, 0.55, 0.62]
    summary = summarise([result(v, v + 0.01) for v in values])
    percent = [100 * v for v in values]
    assert summary["mIoU"]["mean"] == pytest.approx(statistics.fmean(percent))
    assert summary["mIoU"]["spread"] == pytest.approx(statistics.stdev(percent))
    assert summary["best mIoU"]["mean"] == pytest.approx(statistics.fmean(percent) + 1)
    assert summarise([result(0.5, 0.5)])["mIoU"]["spread"] is None
    assert summarise([])["mIoU"]["mean"] is None


def test_markdown_names_its_protocol_and_shows_the_paper():
    table = Table("T", (Row("a", paper={"mIoU": 87.3}), Row("b")))
    text = as_markdown(table, [(table.rows[0], [result(0.5, 0.6), result(0.7, 0.7)]), (table.rows[1], [])])
    assert "| a | 2 | 60.00 ± 14.14 | 70.00 ± 14.14 | 0.5000 ± 0.0000 | 65.00 ± 7.07 | 87.3 |" in text
    assert "| b | 0 | - | - | - | - |  |" in text
    assert "p #1" in text and "7 steps" in text


def test_rows_lie_over_the_table_and_the_base():
    table = Table("T", (Row("a", {"model": {"options": {"dco": True}}}),), set={"model": {"name": "crisp_{size}"}})
    values = row_values(table, table.rows[0], {"model": {"name": "x", "options": {"state": 4}}, "seed": 9})
    assert values == {"model": {"name": "crisp_tiny", "options": {"state": 4, "dco": True}}, "seed": 9}


def test_jobs_made_with_other_settings_are_not_mixed(tmp_path, folder):
    table = Table("T", (Row("a"),))
    base = tiny.settings(folder, tmp_path)
    (job,) = plan_jobs(table, base, [], [3], tmp_path)
    assert job.folder == tmp_path / "a" / "seed3"
    assert yaml.safe_load(job.config.read_text())["seed"] == 3
    plan_jobs(table, base, ["optimizer.lr=1"], [3], tmp_path)  # nothing has run yet
    job.folder.mkdir()
    (job.folder / "config.yaml").write_text("")
    with pytest.raises(UserError, match="made for another table, data or settings"):
        plan_jobs(table, base, ["optimizer.lr=2"], [3], tmp_path)


def test_a_table_from_the_command_line(tmp_path, folder, capsys):
    """Two rows, one of which fails; mended, only that one runs again."""
    rows = [{"name": "both", "set": {}}, {"name": "none", "set": {"model": {"options": {"dim": 15}}}}]
    table, base, out = tmp_path / "t.yaml", tmp_path / "base.yaml", tmp_path / "out"
    table.write_text(yaml.safe_dump({"title": "Prototypes", "rows": rows}))
    base.write_text(yaml.safe_dump(tiny.settings(folder, tmp_path, schedule={"steps": 2})))
    words = ["ablate", str(table), "--data", str(base), "--jobs", "2", "--out", str(out)]
    assert main.main(words) == 1
    said = capsys.readouterr()
    assert "1 of 2 runs failed; none, seed 0: crisp: " in said.err
    assert "both, seed 0: finished, mIoU" in said.out

    rows[1]["set"] = {"loss": {"orth": 0.0, "margin": 0.0}}
    table.write_text(yaml.safe_dump({"title": "Prototypes", "rows": rows}))
    assert main.main(words) == 0
    said = capsys.readouterr()
    assert "both, seed 0: finished already" in said.out and "none, seed 0: started" in said.out
    assert "## Prototypes" in said.out
    kept = json.loads((out / "table.json").read_text())
    assert [len(row["runs"]) for row in kept["rows"]] == [1, 1]
    jobs = plan_jobs(read_table(table), yaml.safe_load(base.read_text()), [], [0], out)
    assert (out / "table.md").read_text() == report(read_table(table), jobs, out) in said.out
