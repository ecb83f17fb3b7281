"""What `benchmarks/kernels.py` compares exists and is right; on a CPU, where an operator is its formula."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def kernels():
    sys.path.insert(0, str(BENCHMARKS))  # as for a script: its neighbours are found
    try:
        yield importlib.import_module("kernels")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def uncompiled(kernels, monkeypatch):
    """torch.compile takes seconds for each case."""
    monkeypatch.setattr(kernels, "CONTENDERS", ("kernel", "torch"))
    monkeypatch.setattr(kernels, "CPU_RUNS", 1)
    return kernels


def run(kernels, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["kernels.py", *words])
    kernels.main()


def test_every_case_is_right(uncompiled):
    device = torch.device("cpu")
    cases = uncompiled.all_cases(uncompiled.Network(device, small=True))
    assert len(cases) == len({case[:3] for case in cases}) > 50
    for case in cases:
        row = uncompiled.measure(case, device, uncompiled.Contenders())
        assert isinstance(row["kernel us"], float) and isinstance(row["torch us"], float), row


def test_the_command_writes_rows_and_a_table(uncompiled, monkeypatch, tmp_path, capsys):
    out = tmp_path / "kernels.json"
    names = "best_cosines", "read_pixels"
    run(uncompiled, monkeypatch, "--device", "cpu", "--small", "--only", *names, "--out", str(out))
    found = json.loads(out.read_text())
    assert [(row["case"], row["batch"]) for row in found["rows"]] == [(name, n) for name in names for n in (1, 2)]
    assert found["command"].startswith("python benchmarks/kernels.py --device cpu")
    assert out.with_suffix(".md").read_text().count("| read_pixels |") == 2


def test_a_wrong_kernel_is_not_timed(uncompiled, monkeypatch):
    original = uncompiled.Contest.call
    monkeypatch.setattr(
        uncompiled.Contest,
        "call",
        lambda self, name: original(self, name) if name == "torch" else lambda: (1.1 * original(self, name)()[0],),
    )
    cases = uncompiled.all_cases(uncompiled.Network(torch.device("cpu"), True))
    case = next(case for case in cases if case.name == "best_cosines")
    row = uncompiled.measure(case, torch.device("cpu"), uncompiled.Contenders())
    assert row["kernel us"] == "wrong" and isinstance(row["torch us"], float)


def test_other_tiles_are_contenders(uncompiled):
    tiles = uncompiled.Tiles("infer.pixel_attention.MOST_TOKENS", "MOST_TOKENS // 2")
    before = tiles.module.MOST_TOKENS
    contenders = uncompiled.Contenders([tiles])
    assert contenders.names == ("kernel", "torch", "MOST_TOKENS = MOST_TOKENS // 2")
    with contenders.backend(contenders.names[-1]):
        assert before // 2 == tiles.module.MOST_TOKENS
    assert before == tiles.module.MOST_TOKENS


def test_shares_cover_all_cases(kernels):
    cases = kernels.all_cases(kernels.Network(torch.device("cpu"), small=True))
    parts = [kernels.chosen(cases, None, f"{i}/3") for i in range(3)]
    assert sorted(case[:3] for part in parts for case in part) == sorted(case[:3] for case in cases)
