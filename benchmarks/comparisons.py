"""The comparisons that the documentation quotes, from the runs that are kept; some are pooled over heads and sizes.

  python benchmarks/comparisons.py > benchmarks/results/comparisons.md

Of benchmarks/results/{decide,confirm,rivals}/results.json; trains nothing, needs no data. A pair is two runs of one
table with the same data set and seed; where several pairs of rows are pooled, each gives its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from crispseg.ablate.plan import make_plan, read_data_sets
from crispseg.ablate.statistics import Difference, Pair, Result, columns, paired
from crispseg.ablate.store import Store
from crispseg.ablate.table import read_table
from crispseg.configs import find_table

RESULTS = Path(__file__).parent / "results"
SETS = (
    "ablation_dubai",
    "ablation_vaihingen",
    "ablation_vaihingen_fold1",
    "ablation_vaihingen_fold2",
    "ablation_potsdam",
)
WORDS = ("schedule.steps=3000", "schedule.warmup=150", "ema=0.995")
SCORES = ("mIoU", "BF@3px", "band mIoU@3px")
SIZES = {"decide": "nano", "confirm": "tiny", "rivals": None}  # as the tables' runs were made
SEEDS = (0, 1, 2, 3)


class Rows(NamedTuple):
    table: str
    row: str
    other: str


UPER = "VSSD + UPerHead"
NANO = Rows("decide", "CRISP as described, normalized", UPER)
TINY = Rows("confirm", "CRISP", UPER)
NANO_DCO = (Rows("decide", f"{UPER}, DCO", UPER), Rows("decide", "CRISP, raw, lse", "CRISP, raw, lse, no DCO"))
TINY_DCO = (Rows("confirm", f"{UPER}, DCO", UPER), Rows("confirm", "CRISP", "CRISP, no DCO"))
COMPARISONS: dict[str, tuple[Rows, ...]] = {
    "CRISP against VSSD + UPerHead, nano": (NANO,),
    "CRISP against VSSD + UPerHead, tiny": (TINY,),
    "the same, nano and tiny": (NANO, TINY),
    "DCO under UPerHead, nano": NANO_DCO[:1],
    "DCO under OMP, nano (raw, lse)": NANO_DCO[1:],
    "DCO under both heads, nano": NANO_DCO,
    "DCO under UPerHead, tiny": TINY_DCO[:1],
    "DCO under OMP, tiny": TINY_DCO[1:],
    "DCO under both heads, tiny": TINY_DCO,
    "DCO under both heads, nano and tiny": (*NANO_DCO, *TINY_DCO),
    "raw fusion against normalised, nano (CRISP, lse)": (Rows("decide", "CRISP, raw, lse", "CRISP, normalized, lse"),),
    "selective fusion against normalised, nano (CRISP, lse)": (
        Rows("decide", "CRISP, selective, lse", "CRISP, normalized, lse"),
    ),
    "log-sum-exp against the maximum, nano": (
        Rows("decide", "CRISP, normalized, lse", "CRISP as described, normalized"),
    ),
    "K = 3 against 1, nano (raw, lse)": (Rows("decide", "CRISP, raw, lse", "CRISP, raw, lse, K = 1"),),
    "K = 3 against 1, tiny": (Rows("confirm", "CRISP", "CRISP, K = 1"),),
    "CRISP, normalised, lse against VSSD + UPerHead, nano": (Rows("decide", "CRISP, normalized, lse", UPER),),
    "CRISP, selective, lse against VSSD + UPerHead, nano": (Rows("decide", "CRISP, selective, lse", UPER),),
    "CRISP-nano against UNetFormer": (Rows("rivals", "CRISP-nano", "UNetFormer"),),
    "CRISP-nano against ABCNet": (Rows("rivals", "CRISP-nano", "ABCNet"),),
    "CRISP against UNetFormer": (Rows("rivals", "CRISP", "UNetFormer"),),
    "CRISP against ABCNet": (Rows("rivals", "CRISP", "ABCNet"),),
    "CRISP against CRISP-nano": (Rows("rivals", "CRISP", "CRISP-nano"),),
}


def main() -> None:
    tables = {name: scores_of(name) for name in SIZES}
    print("# Comparisons after 3,000 steps from scratch\n")
    print("`python benchmarks/comparisons.py > benchmarks/results/comparisons.md`\n")
    print("The mean of the pairs in points, with the 95 % interval of Student's t.\n")
    print(f"| comparison | pairs | {' | '.join(SCORES)} |\n|---|---|{'---|' * len(SCORES)}")
    for name, rows in COMPARISONS.items():
        found = pooled(tables, rows)
        print(f"| {name} | {found[0].pairs} | {' | '.join(map(shown, found))} |")


def scores_of(name: str) -> dict[str, dict[Pair, Result]]:
    """By a table's rows, what its finished runs gave."""
    table = read_table(find_table(name), SIZES[name])
    plan = make_plan([table], read_data_sets(SETS), WORDS, SEEDS, RESULTS / name)
    store = Store(RESULTS / name)
    found: dict[str, dict[Pair, Result]] = {row.name: {} for row in table.rows}
    for place, run in plan.places.items():
        if (result := store.find(run)) is not None:
            found[place.row][place.data, place.seed] = result
    return found


def pooled(tables: dict[str, dict[str, dict[Pair, Result]]], rows: Sequence[Rows]) -> list[Difference]:
    own: dict[Pair, Result] = {}
    other: dict[Pair, Result] = {}
    for one in rows:
        for pairs, row in ((own, one.row), (other, one.other)):
            for (data, seed), result in tables[one.table][row].items():
                pairs[f"{one.table}, {one.row}, {data}", seed] = result
    return [paired(own, other, column) for column in columns(SCORES)]


def shown(difference: Difference) -> str:
    assert difference.interval is not None, "two pairs at least"
    low, high = difference.interval
    mean = f"{difference.mean:+.2f}"
    return f"{f'**{mean}**' if difference.clear else mean} [{low:+.2f}, {high:+.2f}]"


if __name__ == "__main__":
    main()
