"""What `crisp doctor` says of the operators, and what it compiles ahead."""

import json
import tomllib
from pathlib import Path

import pytest
import torch

from crispseg import doctor
from crispseg.cli.main import main
from crispseg.models.shipped import DEFAULT
from crispseg.ops.dispatch import CPU_WAYS, OFF_VARIABLE, operators, switched_off, why_not_on_a_cpu

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_every_operator_with_its_path_and_why(capsys):
    main(["doctor", "--json"])
    said = {row["what"]: row for row in json.loads(capsys.readouterr().out)}
    assert {f"op {name}" for name in operators()} <= set(said)
    if not torch.cuda.is_available():
        assert said["op layer_norm"] == {"status": "missing", "what": "op layer_norm", "found": "formula: no GPU"}


def test_ways_on_a_cpu_and_why_not(capsys, monkeypatch):
    monkeypatch.setenv(OFF_VARIABLE, "winograd")
    switched_off.cache_clear()
    main(["doctor", "--json"])
    switched_off.cache_clear()
    said = {row["what"]: row["found"] for row in json.loads(capsys.readouterr().out)}
    assert {f"cpu {name}" for name in CPU_WAYS} <= set(said)
    if why_not_on_a_cpu("onednn") is None:
        assert said["cpu winograd"] == "torch's own way: switched off" and "own way" not in said["cpu onednn"]


def test_an_operator_switched_off_that_nobody_knows(capsys, monkeypatch):
    monkeypatch.setenv(OFF_VARIABLE, "lyer_norm")
    switched_off.cache_clear()
    assert main(["doctor"]) == 1
    switched_off.cache_clear()
    assert "layer_norm" in capsys.readouterr().err


def test_every_extra_is_named():
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    told = " ".join(install for _, install in doctor._OPTIONAL.values())
    assert [extra for extra in project["optional-dependencies"] if f"crispseg[{extra}]" not in told] == ["docs", "dev"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_warming_needs_a_gpu(capsys):
    assert main(["doctor", "--warm", "crisp_nano"]) == 1
    assert "sees none" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_warming_without_a_word_takes_the_model_that_comes_along(capsys):
    assert main(["doctor", "--warm"]) == 1
    said = capsys.readouterr().err
    assert DEFAULT in said and "sees none" in said


def test_the_c_compiler_that_triton_needs(monkeypatch, tmp_path):
    headers = {"include": str(tmp_path)}
    monkeypatch.setattr(doctor.sysconfig, "get_paths", lambda: headers)
    monkeypatch.setattr(doctor.shutil, "which", {"clang": "/bin/clang", "/bin/clang": "/bin/clang"}.get)
    monkeypatch.delenv("CC", raising=False)
    assert doctor._c_compiler(gpu=True).status == "broken"  # a compiler, but not what it includes
    assert "Python.h" in doctor._c_compiler(gpu=True).found
    (tmp_path / "Python.h").touch()
    assert doctor._c_compiler(gpu=True)[::2] == (
        "ok",
        "/bin/clang, with Python's headers (Triton's launcher of GPU kernels)",
    )
    monkeypatch.setenv("CC", "tcc")
    assert "without a C compiler (tcc): apt install" in doctor._c_compiler(gpu=True).found
    assert doctor._c_compiler(gpu=False).status == "missing"


@needs_gpu
@pytest.mark.gpu
def test_warming_compiles_what_a_model_needs(capsys):
    assert main(["doctor", "--warm", "crisp_nano", "--size", "128", "--batch", "2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["status"] for row in said] == ["ok"] * 5
