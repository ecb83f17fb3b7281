import importlib.util

import pytest

from crispseg.bench import plot, tables
from crispseg.bench.result import Result, Skipped
from crispseg.bench.scaling import per_pixel
from crispseg.errors import UserError
from tests.bench.conftest import model_cell

ENVIRONMENT = {
    "cpu": "x",
    "cores": 2,
    "threads": 1,
    "torch": "2.11",
    "python": "3.12",
    "crispseg": "0.1",
    "device": "cpu",
}
CHOSEN = {"half": "weights", "repeats": 5, "layout": "channels_last"}


def result(*cells, kind="models", **fields):
    return Result(kind, ENVIRONMENT, CHOSEN, cells=cells, **fields)


def test_ratios_are_taken_in_the_same_place():
    cells = [
        model_cell("base", 2.0, peak_bytes=100),
        model_cell("fast", 1.0, peak_bytes=300),
        model_cell("base", 8.0, batch=16),
        model_cell("fast", 2.0, batch=16),
        model_cell("base", 0.5, mode="compiled"),
        model_cell("fast", None, mode="compiled", status="wrong"),
        model_cell("alone", 1.0, size=64),
    ]
    found = [row[-2:] for row in tables.table(result(*cells), "base").rows]
    assert found == [["1.00", "1.00"], ["0.50", "3.00"], ["1.00", ""], ["0.25", ""], ["1.00", ""], ["", ""], ["", ""]]
    values = tables.values(result(*cells), "base")
    assert [cell["time_ratio"] for cell in values["cells"]] == [1, 0.5, 1, 0.25, 1, None, None]
    assert [cell["memory_ratio"] for cell in values["cells"]][:3] == [1, 3, None] and values["relative_to"] == "base"
    assert "time_ratio" not in tables.values(result(*cells))["cells"][0]
    in_mode = [row[-2] for row in tables.table(result(*cells), "base@compiled").rows]
    assert in_mode == ["4.00", "2.00", "", "", "1.00", "", ""]


@pytest.mark.parametrize(
    ("base", "message"), [("bsae", "did you mean 'base'"), ("base@eagr", "unknown mode to compare with 'eagr'")]
)
def test_an_unknown_base(base, message):
    with pytest.raises(UserError, match=message):
        tables.table(result(model_cell("base")), base)


def test_markdown_says_what_went_wrong_and_gives_no_time_for_it():
    text = tables.markdown(
        result(
            model_cell("good", 3.0),
            model_cell("bad", None, status="wrong", reason="relative error 2.0e-01; allowed is 1e-04", check_error=0.2),
            model_cell("large", None, status="out of memory", reason="Tried to allocate"),
            skipped=(Skipped("peer", "needs pip install 'crispseg[peers]'"),),
            command="crisp bench good bad",
        )
    )
    good, bad, large = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert "3.000 ± 0.100" in good
    assert [cell.strip() for cell in bad.split("|")][6:8] == ["wrong", ""]
    assert "out of memory" in large
    assert "bad 512 px, batch 1, fp32, eager: wrong: relative error 2.0e-01" in text
    assert "peer: skipped: needs pip install 'crispseg[peers]'" in text
    assert "`crisp bench good bad`" in text
    assert "1 thread;" in text
    assert "channels last" in text


def test_scaling_has_its_own_table_and_verdict():
    cells = (model_cell(size=512, batch=4), model_cell(size=1024))
    text = tables.markdown(result(*cells, kind="scaling", per_pixel=tuple(per_pixel(cells))))
    assert "ns per pixel" in text
    assert "- a fp32 eager: linear" in text


def test_plots(tmp_path, monkeypatch):
    cells = (model_cell("a" * 200), model_cell("b", 3.0, mode="compiled"), model_cell("c", None, status="wrong"))
    path = tmp_path / "bench.png"
    assert plot.draw(result(cells[2]), path) == plot.NOTHING
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "crispseg[plots]" in plot.draw(result(*cells), path)
    assert not path.exists()
    monkeypatch.undo()
    pytest.importorskip("matplotlib")
    assert plot.draw(result(*cells), path) == ""
    assert path.read_bytes().startswith(b"\x89PNG")
