"""Figures that two pages have are the same on both."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.docs.blocks import ROOT

COMPARISONS = "benchmarks/results/comparisons.md"
INTERVAL = r"[-+]\d+\.\d\d \[[-+]\d+\.\d\d, [-+]\d+\.\d\d\]"


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def rows(page: str, heading: str) -> dict[str, list[str]]:
    """Of the table whose header has this heading: the cells by the row's name."""
    lines = read(page).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|") and heading in line)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]]
    end = next((i for i, row in enumerate(cells) if len(row) < 2), len(cells))
    return {row[0]: row[1:] for row in cells[:end]}


def test_the_rivals_times_on_a_cpu_have_one_source() -> None:
    measured = rows("benchmarks/results/ablations/rivals.md", "ms (512 px, batch 1, fused)")
    column = next(names.index("ms (512 px, batch 1, fused)") for name, names in measured.items() if not name)
    told = rows("docs/explanation/peers.md", "ms, two CPU cores")
    names = [name for name in told if name in measured and name.strip("-")]
    assert len(names) == 10
    for name in names:
        assert told[name][-1] == f"{float(measured[name][column]):.0f}", name


def test_crisp_nano_beside_the_fast_rivals_is_what_the_table_gives() -> None:
    differences = rows("benchmarks/results/ablations/rivals.md", "all data: mIoU")
    for page, words in (("README.md", "ahead of UNetFormer by"), ("docs/explanation/rivals.md", "is ahead of ABCNet")):
        paragraphs = read(page).split("\n\n")
        told = next(paragraph for paragraph in paragraphs if words in paragraph)
        for name in ("ABCNet", "UNetFormer"):
            nano, rival = (float(differences[who][7].split()[0]) for who in ("CRISP-nano", name))
            assert f"{nano - rival:.1f}" in re.findall(r"\d+\.\d", told), (page, name)


def test_comparisons_are_what_the_kept_runs_give() -> None:
    made = subprocess.run([sys.executable, "benchmarks/comparisons.py"], cwd=ROOT, capture_output=True, text=True)
    assert made.stdout == read(COMPARISONS), made.stderr


@pytest.mark.parametrize("heading", ["What holds", "Decided: twenty pairs", "Confirmed with tiny: ten pairs"])
def test_decisions_are_those_of_the_comparisons(heading: str) -> None:
    text = read("docs/explanation/ablations.md")
    section = re.split(r"\n##+ ", text.split(f"# {heading}\n")[1])[0]
    told, made = (set(re.findall(INTERVAL, page.replace("**", ""))) for page in (section, read(COMPARISONS)))
    assert len(told) >= 10
    assert told <= made


@pytest.mark.parametrize("page", ["README.md", "docs/explanation/rivals.md"])
def test_the_rivals_after_3000_steps_are_those_of_their_table(page: str) -> None:
    differences = rows("benchmarks/results/rivals/rivals.md", "all data: mIoU")
    told = rows(page, "mIoU, 3,000 steps" if page == "README.md" else "| Vaihingen | Potsdam |")
    for name in ("CRISP-nano", "VSSD + UPerHead", "UNetFormer", "ABCNet"):
        cells = told[f"**{name}**" if name == "CRISP-nano" else name]
        for column in (-3, -2):  # mIoU and BF of all data
            mean, _, *interval = numbers(differences[name][column])
            same = [cell for cell in cells if numbers(cell) == pytest.approx([mean, *interval], abs=0.06)]
            assert same and same[0].endswith("*") == differences[name][column].endswith("*"), (name, cells)


@pytest.mark.parametrize("page", ["README.md", "docs/explanation/rivals.md"])
def test_crisp_nano_after_3000_steps_is_ahead_by_what_the_comparisons_say(page: str) -> None:
    made, text = rows(COMPARISONS, "| comparison |"), read(page).replace(" mIoU", "")
    for name in ("UNetFormer", "ABCNet"):
        mean, low, high = numbers(made[f"CRISP-nano against {name}"][1])
        assert f"of {name} by {mean:.1f} [{low:.1f}, {high:.1f}]" in text


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_how_much_sharper_is_said_first_is_what_the_comparisons_say(page: str) -> None:
    made = rows(COMPARISONS, "| comparison |")
    others = ("CRISP against UNetFormer", "CRISP against ABCNet", "CRISP against VSSD + UPerHead, tiny")
    bf = [f"{numbers(made[name][2])[0]:.1f}" for name in others]
    assert f"boundary F at 3 px that is {bf[0]}, {bf[1]} and {bf[2]} points lower" in read(page)


def numbers(cell: str) -> list[float]:
    return [float(number) for number in re.findall(r"[-+]?[\d.]+", cell)]
