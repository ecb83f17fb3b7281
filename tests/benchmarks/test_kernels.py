"""What `python -m benchmarks.kernels` compares exists and is right; on a CPU, where an operator is its formula."""

import json
import shlex
import sys

import pytest
import torch
from benchmarks.kernels import __main__ as command
from benchmarks.kernels import contest
from benchmarks.kernels.network import Network


@pytest.fixture
def uncompiled(monkeypatch):
    """torch.compile takes seconds for each case."""
    monkeypatch.setattr(contest, "CONTENDERS", ("kernel", "torch"))
    monkeypatch.setattr(contest, "CPU_RUNS", 1)
    return contest


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["kernels", *words])
    command.main()


def test_every_case_is_right(uncompiled):
    device = torch.device("cpu")
    cases = uncompiled.all_cases(Network(device, small=True))
    assert len(cases) == len({case[:3] for case in cases}) > 50
    for case in cases:
        row = uncompiled.measure(case, device, uncompiled.Contenders())
        assert isinstance(row["kernel us"], float) and isinstance(row["torch us"], float), row


def test_the_command_writes_rows_and_a_table(uncompiled, monkeypatch, tmp_path, capsys):
    out = tmp_path / "kernels.json"
    names = "best_cosines", "read_pixels"
    run(monkeypatch, "--device", "cpu", "--small", "--only", *names, "--out", str(out))
    found = json.loads(out.read_text())
    assert [(row["case"], row["batch"]) for row in found["rows"]] == [(name, n) for name in names for n in (1, 2)]
    assert found["command"].startswith("python -m benchmarks.kernels --device cpu")
    assert out.with_suffix(".md").read_text().count("| read_pixels |") == 2


def test_a_wrong_kernel_is_not_timed(uncompiled, monkeypatch):
    original = uncompiled.Contest.call
    monkeypatch.setattr(
        uncompiled.Contest,
        "call",
        lambda self, name: original(self, name) if name == "torch" else lambda: (1.1 * original(self, name)()[0],),
    )
    cases = uncompiled.all_cases(Network(torch.device("cpu"), True))
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


def test_the_tiles_that_its_help_names():
    """Values are Python in the kernel's module: its words are those of today."""
    pytest.importorskip("triton")
    (line,) = (line for line in command.__doc__.splitlines() if "--tiles" in line and "python" in line)
    words = shlex.split(line)
    place, value = words[words.index("--tiles") + 1 :]
    tiles = contest.Tiles(place, value)
    assert type(tiles.value) is type(getattr(tiles.module, tiles.name))
    assert tiles.value != getattr(tiles.module, tiles.name)


def test_shares_cover_all_cases():
    cases = contest.all_cases(Network(torch.device("cpu"), small=True))
    parts = [command.chosen(cases, None, f"{i}/3") for i in range(3)]
    assert sorted(case[:3] for part in parts for case in part) == sorted(case[:3] for case in cases)
