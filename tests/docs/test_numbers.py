"""Figures that two pages have are the same on both."""

from __future__ import annotations

from tests.docs.blocks import ROOT


def rows(page: str, heading: str) -> dict[str, list[str]]:
    """Of the table whose header has this heading: the cells by the row's name."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|") and heading in line)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]]
    end = next(i for i, row in enumerate(cells) if len(row) < 2)
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
    for page, form in (("README.md", "by {} "), ("docs/explanation/rivals.md", "{}")):
        paragraphs = (ROOT / page).read_text(encoding="utf-8").split("\n\n")
        told = next(paragraph for paragraph in paragraphs if "is ahead of ABCNet" in paragraph)
        for name in ("ABCNet", "UNetFormer"):
            nano, rival = (float(differences[who][7].split()[0]) for who in ("CRISP-nano", name))
            assert form.format(f"{nano - rival:.1f}") in told, (page, name)
