import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import crispseg
from crispseg.cli.main import VERBS, main, verb_parser
from crispseg.cli.printer import plain
from crispseg.models.catalogue import Listed
from tests.models.test_registered import SHRINK_CRISP

PAGES = Path(__file__).parents[2] / "docs"


def test_overview_and_version(capsys):
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(verb in text for verb in VERBS)
    assert main(["--version"]) == 0
    assert crispseg.__version__ in capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS)
def test_helps_name_pages_that_there_are_where_no_checkout_is(verb):
    text = verb_parser(verb).format_help()
    assert "docs/" not in text
    titles = [path.read_text(encoding="utf-8").splitlines()[0] for path in PAGES.glob("*/*.md")]
    for page in re.findall(r'page\s+"([^"]+)"', text):
        assert any(title.lstrip("# ").startswith(page) for title in titles), page


def test_a_misspelt_verb_is_a_wrong_word(capsys):
    """Status 2, as of every other wrong word."""
    assert main(["modles"]) == 2
    assert capsys.readouterr().err == "crisp: unknown command 'modles'; did you mean 'models'?\n"


def test_mistakes_are_one_line_and_status_one(capsys):
    for words, message in (
        (["info", "crisp_tin"], "there is no folder crisp_tin, nor a model of that name; did you mean 'crisp_tiny'?"),
        (["info", "my/folder"], "there is no folder my/folder, nor a model of that name; `crisp models` lists them"),
        (["info", "crisp_nano", "prototyp=2"], "did you mean 'prototypes'?"),
        (["info", "crisp_nano", "--size", "0"], "--size takes"),
        (["models", "zzz*"], "no model matches"),
    ):
        assert main(words) == 1
        captured = capsys.readouterr()
        assert message in captured.err
        assert len(captured.err.strip().splitlines()) == 1


def test_a_wrong_path_is_called_what_it_is(tmp_path, monkeypatch, capsys):
    """A list of sixty configs, or which GDAL drivers do not know the format, helps nobody who mistyped a path."""
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("empty.tif").touch()
    Path("empty.gpkg").touch()
    Path("text.txt").write_text("hello")
    raster = "cannot be read as a raster: it is"
    for words, said in (
        ("train nowhere", "no folder nowhere, nor a config of that name; `crisp configs` lists them"),
        ("train text.txt", "text.txt is a file, neither a data folder nor a config (.yaml, .yml)"),
        ("pretrain nowhere", "no folder nowhere, nor a config of that name; `crisp configs` lists them"),
        ("ablate dco --data empty schedule.steps=2", "--data schedule.steps=2: that is a key, and no data set; "),
        ("ablate dco --data empty", "empty has no folder images/; own data needs images/ and masks/"),
        ("eval crisp_nano_aerial text.txt", "text.txt is a file, not a data folder"),
        ("vectorize empty -o a.gpkg", f"empty {raster} a folder"),
        ("vectorize empty.tif -o a.gpkg", f"empty.tif {raster} empty (0 bytes); copy or download it again"),
        ("prepare vector --image a.tif --labels empty.gpkg --field a -o b", "as polygons: it is empty (0 bytes)"),
        ("bench crisp_nano -o text.txt/a", "cannot write to the folder text.txt/a: "),
    ):
        assert main(words.split()) == 1, words
        told = capsys.readouterr().err.splitlines()
        assert said in told[-1] and len(told) <= 2, words


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    assert f"usage: crisp {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS)
def test_what_writes_is_told_where_by_the_same_words(verb):
    """Some call it --out, some --output, --save or --sheet for what it is; -o and --out are all of them."""
    words = verb_parser(verb)._option_string_actions
    writes = "--existing" in words or verb in ("ablate", "convert", "eval", "analyze")
    assert ("-o" in words, "--out" in words) == (writes, writes)
    assert not writes or words["-o"] is words["--out"]


def test_names_that_begin_with_a_dash_follow_two(tmp_path, monkeypatch, capsys):
    """argparse said that SCENE is required."""
    monkeypatch.chdir(tmp_path)
    for words in (["predict", "-o", "map.tif", "--", "-x.tif"], ["predict", "-o", "maps", "--", "-x.tif", "a.tif"]):
        assert main(words) == 1
        assert "-x.tif: there is no file -x.tif" in capsys.readouterr().err


def test_models(capsys):
    assert main(["models", "crisp_n*", "--quick"]) == 0
    assert capsys.readouterr().out == "crisp_nano\n"
    assert main(["models", "crisp_n*"]) == 0
    assert "4.90" in capsys.readouterr().out
    assert main(["models", "vssd_nano"]) == 0
    assert capsys.readouterr().out.startswith("pretrained backbone")
    assert main(["models", "vssd_nano", "--quick"]) == 0
    assert capsys.readouterr().out == "vssd_nano\n"
    assert main(["models", "vssd_micro"]) == 1
    assert "a backbone without weights, for `crisp pretrain ... model=vssd_micro`" in capsys.readouterr().err


def test_info_of_a_folder_that_is_neither_model_nor_data(capsys, tmp_path):
    assert main(["info", str(tmp_path)]) == 1
    said = f"{tmp_path} is neither a model (it has no config.json) nor a data folder (it has no images/)"
    assert said in capsys.readouterr().err


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


def test_models_are_listed_without_torch():
    """`crisp models` reads a catalogue: it must not take the seconds that torch takes to start."""
    code = "import sys; from crispseg.cli.main import main; main(['models']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_results_go_to_stdout_as_json_and_the_rest_to_stderr(capsys, tmp_path):
    assert main(["models", "crisp_n*", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in listed["models"]] == ["crisp_nano"]
    assert listed["trained"][0]["name"] == "crisp_nano_aerial"
    assert main(["info", "crisp_nano", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == listed["models"][0]["parameters"]
    assert main(["predict", str(tmp_path / "none.tif"), "-o", str(tmp_path / "map.tif"), "--json", "--quiet"]) == 1
    said = capsys.readouterr()
    assert "there is no file" in json.loads(said.out)["failures"][0]["reason"]
    assert "there is no file" in said.err


def test_plain_values():
    found = plain(
        {"path": Path("a/b"), "bad": float("nan"), "number": np.float32(0.5), "cells": (Listed(*"abcd", 1, 2),)}
    )
    assert found["path"] == str(Path("a/b")) and found["bad"] is None and found["number"] == 0.5
    assert found["cells"][0]["macs"] == 2


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_verbs_and_their_words(shell, capsys):
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(verb in script for verb in VERBS) and "--min-area" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you ...")])
def test_too_little_memory_is_one_line(monkeypatch, capsys, error):
    def fill(args):
        raise error

    monkeypatch.setattr("crispseg.cli.models.run", fill)
    assert main(["models"]) == 1
    assert "crisp: out of memory; take smaller crops" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["info closed/model", "train data=closed", "predict closed/x.tif -o m.tif"])
def test_a_folder_that_may_not_be_looked_into(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "closed" / "model").mkdir(parents=True)
    pytest.importorskip("rasterio")

    def refuse(path, *args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    stat = os.stat
    monkeypatch.setattr(
        os, "stat", lambda path, *a, **k: refuse(path) if "closed" in str(path) else stat(path, *a, **k)
    )
    assert main(words.split()) == 1
    said = capsys.readouterr().err
    assert "closed" in said and "Permission denied" in said and "Traceback" not in said
