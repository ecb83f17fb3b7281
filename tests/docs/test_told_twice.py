"""What the README and the page of shipped models say stands elsewhere, too, and is the same there."""

from __future__ import annotations

import json
import re

from tests.docs.blocks import ROOT
from tests.docs.test_numbers import read, rows

CARD = ROOT / "src" / "crispseg" / "shipped" / "crisp_nano_aerial"


def test_the_site_begins_as_the_readme_does() -> None:
    paragraphs = (re.sub(r"\]\([^)]*\)", "]", read(page).split("\n\n")[1]) for page in ("README.md", "docs/index.md"))
    assert len(set(paragraphs)) == 1


def buildings(page: str) -> list[str]:
    """The IoU of building, place by place."""
    return [line.strip("| ").split(" | ")[-1] for line in read(page).splitlines() if "| building |" in line]


def test_other_places_are_those_of_the_results() -> None:
    page = "docs/reference/models.md"
    table = [cells[1] for name, cells in rows(page, "| where |").items() if re.fullmatch(r"\d+\.\d", cells[1])]
    found = buildings("benchmarks/results/strangers.md")
    assert table == found and len(found) == 6
    before = re.search(r"these were (.*?) for buildings", read(page))
    assert before and re.findall(r"\d+\.\d", before[1]) == buildings("benchmarks/results/strangers_before.md")
    christchurch, towns, coarse = (f"{float(found[place]):.0f}" for place in (1, 2, 5))
    told = f"{christchurch} in Christchurch, {towns} in American towns and {coarse} to"
    assert told in " ".join(read("README.md").split())


def test_the_card_has_the_scores_of_its_config() -> None:
    scores = json.loads((CARD / "config.json").read_text(encoding="utf-8"))["info"]["scores"]
    (line,) = re.findall(r"^\| crisp_nano_aerial \|(.*)\|$", (CARD / "README.md").read_text(encoding="utf-8"), re.M)
    told = [float(cell) for cell in line.split("|")]
    assert told == [round(100 * value, 2) for value in list(scores.values())[1:9]]
