"""The page of the paper's tables: its commands are understood to the last word, and its costs add up."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from crispseg.ablate.table import read_table
from crispseg.bench.specs import parse
from crispseg.cli.main import verb_parser
from crispseg.configs import find_table
from crispseg.data.protocol import get_protocol
from crispseg.models.registry import list_models
from crispseg.train.config import train_config
from tests.docs.blocks import ROOT, Command, commands
from tests.docs.test_blocks import check_crisp

PAGE = "docs/how-to/reproduce.md"
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")


def rows() -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in TEXT.splitlines() if line.startswith("| ")][1:]


def inline() -> Iterator[Command]:
    """The commands between backticks that have words of their own."""
    for found in re.findall(r"`crisp (\w+ [^`]+)`", TEXT):
        yield Command(PAGE, tuple(found.split()))


@pytest.mark.parametrize("command", list(inline()), ids=str)
def test_commands_of_the_table_are_understood(command: Command) -> None:
    verb, *rest = command.words
    check_crisp(list(command.words))
    args = verb_parser(verb).parse_intermixed_args(rest)
    if verb == "bench":
        assert len(parse(args.words)) == 10 and set(args.modes) <= {"eager", "graph", "compiled", "fused"}


def test_every_row_has_a_command_or_says_where_it_is() -> None:
    assert len(rows()) == 11
    assert all("`crisp " in row[1] or "(#" in row[1] for row in rows())


def test_the_main_tables_commands_train_what_they_say() -> None:
    found = [c.words[2:] for c in commands() if c.page == PAGE and c.words[1] == "train"]
    configs = [train_config(words[0], words[1:]) for words in found]
    names = [config.model.name for config in configs]
    assert names == ["crisp_tiny"] * 3 + ["vssd_tiny_upernet"] * 3 + ["unetformer_r18"] * 3
    assert all(get_protocol(str(config.data.protocol)) for config in configs)
    named = re.findall(r"`(\w+)`", TEXT[TEXT.index("and so on with") : TEXT.index("each has a [recipe]")])
    assert len(named) == 7 and set(named) <= set(list_models())
    for name in named:
        for place in ("potsdam", "vaihingen", "loveda"):
            assert train_config(f"peers/{name}_{place}").model.name == name


def test_costs_are_those_of_the_measured_speeds() -> None:
    runs = json.loads((ROOT / "benchmarks/results/training_h200.json").read_text())["runs"]
    recipe = train_config("paper")
    images = recipe.schedule.steps * recipe.batch_size
    minutes = {run["model"]: images / run["steps"] / 60 for run in runs if not run["compile"]}
    ours, baseline = minutes["crisp_tiny"], minutes["vssd_tiny_upernet"]
    assert f"**{ours:.0f} minutes**" in TEXT and f"**{baseline:.0f} minutes**" in TEXT
    costs = {re.findall(r"ablate (\w+)", row[1])[0]: row[3] for row in rows() if "crisp ablate" in row[1]}
    for name, cost in costs.items():
        sets = 3 if name in ("main", "sharpness") else 1
        heads = [str((row.set.get("model") or {}).get("name", "")) for row in read_table(find_table(name)).rows]
        common = str(read_table(find_table(name)).set.get("model", {}).get("name", ""))
        hours = sets * sum(baseline if "upernet" in (head or common) else ours for head in heads) / 60
        assert float(re.findall(r"([\d.]+) h", cost)[-1]) == pytest.approx(hours, abs=0.5), name
