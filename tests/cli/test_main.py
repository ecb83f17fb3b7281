import json

import pytest

import crispseg
from crispseg.cli.main import VERBS, main
from tests.models.test_registered import SHRINK_CRISP


def test_overview_and_version(capsys):
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(verb in text for verb in VERBS)
    assert main(["--version"]) == 0
    assert crispseg.__version__ in capsys.readouterr().out


def test_mistakes_are_one_line_and_status_one(capsys):
    for words, message in (
        (["modles"], "unknown command 'modles'; did you mean 'models'?"),
        (["info", "crisp_tin"], "unknown model 'crisp_tin'"),
        (["info", "crisp_nano", "prototyp=2"], "did you mean 'prototypes'?"),
        (["info", "crisp_nano", "--size", "0"], "--size takes"),
        (["models", "zzz*"], "no model matches"),
    ):
        assert main(words) == 1
        captured = capsys.readouterr()
        assert message in captured.err
        assert len(captured.err.strip().splitlines()) == 1


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    assert f"usage: crisp {verb}" in capsys.readouterr().out


def test_models(capsys):
    assert main(["models", "crisp_n*", "--quick"]) == 0
    assert capsys.readouterr().out == "crisp_nano\n"
    assert main(["models", "crisp_n*"]) == 0
    assert "4.90" in capsys.readouterr().out


def test_info_of_a_name_and_of_a_folder(capsys, tmp_path):
    assert main(["info", "vssd_tiny_upernet", "--classes", "5"]) == 0
    text = capsys.readouterr().out
    for fact in ("56.1042 M", "234.437 GMACs", "235.650 in training", "backbone.layers.3", "512 x 16 x 16"):
        assert fact in text
    model = crispseg.create_model("crisp_nano", num_classes=2, **SHRINK_CRISP)
    model.save(tmp_path / "m")
    assert main(["info", str(tmp_path / "m"), "--size", "64", "96"]) == 0
    assert "64 x 96 image" in capsys.readouterr().out
    assert main(["info", str(tmp_path / "m"), "--classes", "3"]) == 1


def test_doctor(capsys):
    assert main(["doctor"]) == 0
    assert "operator on cpu" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert {"ok", "missing"} >= {f["status"] for f in findings}


def test_interruption(monkeypatch, capsys):
    def interrupt(args):
        raise KeyboardInterrupt

    monkeypatch.setattr("crispseg.cli.models.run", interrupt)
    assert main(["models"]) == 130
    assert "interrupted" in capsys.readouterr().err
