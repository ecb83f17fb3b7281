"""What was played, as FILE.json with every round and FILE.md with a table; several are joined into one."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from campaigns.kill.rounds import Round
from crispseg.files import write_json, write_text


@dataclasses.dataclass(frozen=True)
class Played:
    """The rounds of one seed, by number, and where and when they were played."""

    about: dict[str, Any]
    seed: int
    rounds: dict[int, Round]

    def __str__(self) -> str:
        rounds = self.rounds.values()
        return (
            f"{len(rounds)} rounds of seed {self.seed}: {sum(each.kills for each in rounds)} kills, "
            f"{sum(len(each.troubles) for each in rounds)} troubles, {sum(bool(each.faults) for each in rounds)} "
            f"differences in {sum(each.seconds for each in rounds):.0f} s"
        )


def write_record(path: Path, parts: Sequence[Played]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = [
        {"about": part.about, "seed": part.seed, "rounds": {k: dataclasses.asdict(r) for k, r in part.rounds.items()}}
        for part in parts
    ]
    write_json(path.with_suffix(".json"), {"parts": values})
    write_text(path.with_suffix(".md"), _markdown(parts))


def read_record(path: Path) -> list[Played]:
    parts = json.loads(path.with_suffix(".json").read_text())["parts"]
    return [
        Played(part["about"], part["seed"], {int(k): Round(**each) for k, each in part["rounds"].items()})
        for part in parts
    ]


def _markdown(parts: Sequence[Played]) -> str:
    rounds = [each for part in parts for each in part.rounds.values()]
    kills, faults = sum(each.kills for each in rounds), sum(bool(each.faults) for each in rounds)
    lines = ["# Kill campaign", "", f"{len(rounds)} rounds, {kills} kills, {faults} differences.", ""]
    for part in parts:
        lines += [f"- {part}", *(f"  - {key}: {value}" for key, value in part.about.items())]
    lines += ["", "| case | rounds | killed | differences | seconds a round | troubles |", "|---|---|---|---|---|---|"]
    for case in sorted({each.case for each in rounds}):
        own = [each for each in rounds if each.case == case]
        kinds = Counter(_kind(trouble) for each in own for trouble in each.troubles)
        facts = (
            *(case, len(own), sum(each.kills for each in own), sum(bool(each.faults) for each in own)),
            f"{sum(each.seconds for each in own) / len(own):.1f}",
            ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()),
        )
        lines.append("| " + " | ".join(map(str, facts)) + " |")
    return "\n".join(lines) + "\n"


def _kind(trouble: str) -> str:
    """`kill -9 before call 3 (killed)` -> `kill`."""
    first, second, *_ = trouble.replace(",", "").split(" ")
    names = {"files": "file size", "two": "two at once"}
    return f"{first} {second}" if first in ("inputs", "ray") else names.get(first, first)
