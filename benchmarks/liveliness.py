"""What is awake in the models of an ablation: mixers, gates, prototypes.

  python benchmarks/liveliness.py runs/decide decide --size nano --data ablation_dubai ablation_vaihingen \\
    --seeds 0 1 --out benchmarks/results/decide/liveliness.json schedule.steps=3000 schedule.warmup=150

Takes the same tables, sets, seeds and words as the `crisp ablate` that made the folder (with --keep all), and of each
finished run looks at IMAGES images of the scored split with `crispseg.analysis`: in how many classes at least two
prototypes have 10 % of the class's pixels or more, how much the fused tokens vary beside the skip (median over
blocks), how far the gates travelled, and what mIoU is left with the gates off or every fused token at its mean.
Writes JSON, and a table of means over sets and seeds beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import crispseg
from crispseg.ablate.plan import Run, make_plan, read_data_sets
from crispseg.ablate.table import read_table
from crispseg.analysis import Settings, analyze
from crispseg.analysis.prototypes import USED
from crispseg.configs import find_table
from crispseg.train.setup import open_data

COLUMNS = {
    "mIoU": "mIoU",
    "gates off": "gates off",
    "y^ at its mean": "y^ at its mean",
    "awake": "var(y^)/var(D V)",
    "travelled": "gates travelled",
    "alive": "classes with two prototypes or more in use",
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("folder", type=Path, help="what --out was for `crisp ablate`")
    add("table")
    add("words", nargs="*", metavar="key=value")
    add("--size")
    add("--data", nargs="+", required=True)
    add("--seeds", type=int, nargs="+", default=[0])
    add("--images", type=int, default=16, help="of each set (%(default)s)")
    add("--out", type=Path, required=True)
    args = parser.parse_intermixed_args(argv)
    table = read_table(find_table(args.table), args.size)
    plan = make_plan([table], read_data_sets(args.data), args.words, args.seeds, args.folder)
    found = []
    for place, run in plan.places.items():
        if (run.folder / "best").is_dir():
            found.append({"row": place.row, "data": place.data, "seed": place.seed, **look(run, args.images)})
            print(json.dumps(found[-1]), flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"in_use": USED, "images": args.images, "runs": found}, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(report([row.name for row in table.rows], found))
    return 0


def look(run: Run, images: int) -> dict[str, Any]:
    model = crispseg.load(str(run.folder / "best"))
    seen = analyze(model, open_data(run.config), settings=Settings(images=images, pictures=0))
    scored = seen.conditions.protocol.scored_ids
    values: dict[str, Any] = {
        name if name != "as trained" else "mIoU": 100 * variant.mistakes.figures(scored)["mIoU"]
        for name, variant in seen.variants.items()
    }
    awake = seen.liveliness.get("as trained", {})
    values["awake"] = statistics.median(awake.values()) if awake else None
    gates = seen.gates.get("as trained", ())
    values["travelled"] = statistics.mean(block.travelled for block in gates) if gates else None
    if seen.prototypes is not None:
        shares = seen.prototypes.shares
        met = [c for c in scored if seen.prototypes.pixels[c].sum() > 0]
        values["shares"] = {seen.conditions.protocol.classes[c]: [round(float(s), 4) for s in shares[c]] for c in met}
        values["alive"] = sum(int((shares[c] >= USED).sum()) >= 2 for c in met) / max(len(met), 1)
    return values


def report(rows: Sequence[str], found: Sequence[dict[str, Any]]) -> str:
    lines = [
        "# What is awake",
        "",
        "| row | runs | " + " | ".join(COLUMNS.values()) + " |",
        "|---" * (2 + len(COLUMNS)) + "|",
    ]
    for row in rows:
        runs = [one for one in found if one["row"] == row]
        if runs:
            lines.append(f"| {row} | {len(runs)} | " + " | ".join(_mean(runs, key) for key in COLUMNS) + " |")
    return "\n".join(lines) + "\n"


def _mean(runs: Sequence[dict[str, Any]], key: str) -> str:
    values = [one[key] for one in runs if one.get(key) is not None]
    if not values:
        return ""
    mean = statistics.mean(values)
    if key == "alive":
        return f"{100 * mean:.0f} %"
    return f"{mean:.2g}" if key in ("awake", "travelled") else f"{mean:.2f}"


if __name__ == "__main__":
    sys.exit(main())
