import json

import pytest

from crispseg import bench
from crispseg.ablate import speed
from crispseg.ablate.table import Row, Speed, Table
from crispseg.bench import specs
from crispseg.errors import UserError
from tests.train import tiny


def small(name, **options):
    return {"model": {"name": name, "options": {**tiny.OPTIONS, **options}}}


ROWS = (Row("with DCO", small("crisp_nano")), Row("without", small("crisp_nano", dco=False)))
HOW = Speed(sizes=(32,), batches=(1, 2), precision="fp32", modes=("graph", "eager"), classes=2, repeats=2)
TABLE = Table("T", ROWS, name="t", bench=HOW)
WORDS = [speed.model_word(TABLE, row) for row in ROWS]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(speed.torch.cuda, "is_available", lambda: False)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The text of the file that a measurement leaves."""
    path = tmp_path_factory.mktemp("bench") / "t-bench.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speed.torch.cuda, "is_available", lambda: False)
        speed.measure(TABLE, path, lambda text: None)
    return path.read_text()


@pytest.fixture
def path(measured, tmp_path):
    path = tmp_path / "t-bench.json"
    path.write_text(measured)
    return path


def test_a_row_as_the_bench_takes_it():
    (spec,) = specs.parse([WORDS[1]])
    assert (spec.name, spec.options) == ("crisp_nano", {**tiny.OPTIONS, "dco": False})
    with pytest.raises(UserError, match="row nameless"):
        speed.model_word(TABLE, Row("nameless"))


def test_figures_become_columns(path):
    """Graphs, which this machine does not have, are left out."""
    result = bench.read(path)
    assert {(cell.batch, cell.mode, cell.status) for cell in result.cells} == {(1, "eager", "ok"), (2, "eager", "ok")}
    with_dco, without = (speed.columns(result, word) for word in WORDS)
    headings = ["ms (32 px, batch 1, eager)", "MiB (32 px, batch 1, eager)"]
    headings += ["images/s (32 px, batch 2, eager)", "MiB (32 px, batch 2, eager)"]
    assert list(with_dco) == list(without) == ["params M", "GMACs", *headings]
    cells = {cell.batch: cell for cell in result.cells if cell.model == WORDS[0]}
    assert with_dco[headings[0]] == f"{cells[1].latency_ms.median:.2f}"
    assert with_dco[headings[2]] == f"{2000 / cells[2].latency_ms.median:.0f}"
    assert with_dco["params M"] == f"{cells[1].parameters / 1e6:.2f}"
    assert set(speed.columns(result, "somebody else").values()) == {"-"}
    what, latency = speed.latencies(result)
    assert what == "32 px, batch 1, fp32, eager"
    assert list(latency) == WORDS and latency[WORDS[0]] == cells[1].latency_ms.median


def test_only_what_is_not_there_is_measured(path):
    said = []
    assert speed.measure(TABLE, path, said.append) == bench.read(path)
    assert not said
    values = json.loads(path.read_text())
    values["cells"] = [cell for cell in values["cells"] if cell["batch"] == 1]
    path.write_text(json.dumps(values))
    assert len(speed.measure(TABLE, path, said.append).cells) == 4
    assert "batch 2" in said[0] and not any("batch 1" in line for line in said)


def test_a_cell_without_a_time_says_why(path):
    values = json.loads(path.read_text())
    values["cells"][0] |= {"status": "out of memory", "reason": "it was too big", "latency_ms": None}
    path.write_text(json.dumps(values))
    result = bench.read(path)
    assert speed.columns(result, values["cells"][0]["model"])["ms (32 px, batch 1, eager)"] == "out of memory"
    assert any("out of memory, it was too big" in line for line in speed.footnotes(result))


def test_timings_of_another_device_are_kept(path):
    values = json.loads(path.read_text())
    values["settings"]["device"] = "cuda"
    path.write_text(json.dumps(values))
    said = []
    assert speed.measure(TABLE, path, said.append) == bench.read(path)
    assert "has timings of cuda, which are kept" in said[0]
