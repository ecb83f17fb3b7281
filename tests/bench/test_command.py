import json

import pytest

from crispseg.bench import modes
from crispseg.cli import bench
from crispseg.cli.main import VERBS, main
from tests.bench.conftest import TINY


@pytest.fixture(autouse=True)
def _verb(monkeypatch):
    monkeypatch.setitem(VERBS, "bench", "")


def quick(tmp_path, *words):
    return ["bench", *words, "--device", "cpu", "--sizes", "32", "--repeats", "2", "--out", str(tmp_path)]


def test_models_then_compare(tmp_path, capsys):
    words = quick(tmp_path, TINY, "--modes", "eager", "--relative-to", TINY)
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "1.00" in printed
    values = json.loads((tmp_path / "bench.json").read_text())
    assert values["command"].startswith(f"crisp bench '{TINY}' --sizes 32")
    assert [cell["model"] for cell in values["cells"]] == [TINY]
    assert values["environment"]["threads"] >= 1
    assert TINY in (tmp_path / "bench.md").read_text()
    assert (tmp_path / "bench.png").exists() or "matplotlib" in printed

    assert main(["bench", "compare", str(tmp_path / "bench.json"), "--relative-to", TINY]) == 0
    assert f"ratios to {TINY}" in capsys.readouterr().out.replace("\n", "")
    assert main(["bench", "compare", str(tmp_path / "bench.json"), "--relative-to", TINY, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"][0]["time_ratio"] == 1
    assert main(["bench", "compare", str(tmp_path / "bench.json"), "--relative-to", "x"]) == 1
    assert main(["bench", "compare", str(tmp_path / "bench.json")]) == 1


def test_a_mode_left_out_for_one_model(tmp_path, capsys):
    other = TINY.replace("dim=16", "dim=32")
    assert main(quick(tmp_path, TINY, other, "--modes", "eager", "fused", "--skip", f"{other}@eager")) == 0
    cells = json.loads((tmp_path / "bench.json").read_text())["cells"]
    assert [(cell["model"], cell["mode"]) for cell in cells] == [(TINY, "eager"), (TINY, "fused"), (other, "fused")]
    assert main(quick(tmp_path, TINY)) == 1
    assert "bench.json and" in (said := capsys.readouterr().err) and "there already" in said
    assert main(quick(tmp_path, TINY, "--skip", f"{TINY}@fussed", "--existing", "replace")) == 1
    assert "unknown mode 'fussed'" in capsys.readouterr().err


def test_a_wrong_mode_is_refused_a_number_and_the_status_is_one(tmp_path, capsys, monkeypatch):
    def off_by_one(make, example, recorder):
        return modes.Plain(lambda x: (make(False)(x)[0] + 1,), example)

    monkeypatch.setitem(modes.MODES, "compiled", off_by_one)
    assert main(quick(tmp_path, TINY, "--modes", "eager", "compiled")) == 1
    assert "wrong" in capsys.readouterr().out
    right, wrong = json.loads((tmp_path / "bench.json").read_text())["cells"]
    assert right["latency_ms"]["median"] > 0
    assert (wrong["status"], wrong["latency_ms"], wrong["throughput"]) == ("wrong", None, None)
    assert wrong["check_error"] > wrong["check_bound"]


def test_ops(tmp_path, capsys):
    words = quick(tmp_path, "ops", "--modes", "eager", "--relative-to", "reference", "--stages", "2")
    assert main(words) == 0
    assert "GB/s" in capsys.readouterr().out
    cells = json.loads((tmp_path / "ops.json").read_text())["cells"]
    assert {(cell["stage"], cell["tokens"]) for cell in cells} == {(2, 16)}


def test_scaling(tmp_path, capsys):
    words = quick(tmp_path, "scaling", TINY, "--pixels", "2048")
    assert main(words) == 0
    assert "ns per pixel" in capsys.readouterr().out
    values = json.loads((tmp_path / "scaling.json").read_text())
    assert [(row["size"], row["batch"]) for row in values["per_pixel"]] == [(32, 2)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["crisp_nan"], "did you mean 'crisp_nano'"),
        (["crisp_nano", "--relative-to", "crisp_tiny"], "unknown model to compare with 'crisp_tiny'"),
        (["ops", "crisp_nano"], "takes no model"),
        (["ops", "--modes", "fused"], "way to run whole models"),
        (["scaling", "crisp_nano", "--batch", "2"], "--pixels instead of --batch"),
        (["scaling", "crisp_nano", "--pixels", "0"], "--pixels must be at least 1, not 0"),
        (["crisp_nano", "--skip", "crisp_nanno@eager"], "unknown model to skip 'crisp_nanno'; did you mean"),
        (["crisp_nano", "--modes", "eager", "--skip", "crisp_nano@eager"], "--skip leaves nothing to be timed"),
        (["scaling"], "which model"),
        (["crisp_nano:widht=8"], "did you mean 'width'"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(tmp_path, capsys, words, message):
    assert main(quick(tmp_path / "out", *words)) == 1
    said = capsys.readouterr().err.strip().splitlines()
    assert message in said[-1]
    assert len(said) == 1
    assert not (tmp_path / "out").exists()


def test_the_command_is_said_again():
    import argparse

    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    words = ["a:b=[1,2]", "--sizes", "1", "2", "--half", "autocast", "--out", "some where"]
    command = bench._command(parser.parse_args(words))
    assert command == "crisp bench 'a:b=[1,2]' --sizes 1 2 --out 'some where' --half autocast"
