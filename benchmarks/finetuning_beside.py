"""Fine-tuned runs beside longer ones from scratch that an ablation made: the same data set, seed, crops and rate.

  python benchmarks/finetuning_beside.py benchmarks/results/finetuning_h200.json benchmarks/results/decide/results.json

The ablation's batches are not those of the fine-tuned runs, and its average of the weights forgets more slowly (0.995
for 0.99), so pairs share less than within benchmarks/finetuning.py. Where the ablation has no run, one from scratch of
the first file takes its place. Prints the table.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from finetuning import SETS, markdown, summary

AS_DESCRIBED = {"fusion": "normalized", "matching": "max", "prototypes": 3, "neck": "topdown"}


def main(tuned: str, ablation: str) -> None:
    runs = json.loads(Path(tuned).read_text())["runs"]
    longer = [from_scratch(run) for run in json.loads(Path(ablation).read_text())["runs"].values() if is_crisp(run)]
    known, kinds = {place(run) for run in longer}, {run["kind"] for run in longer}
    own = [run for run in runs if run["kind"] in kinds and place(run) not in known]
    print(markdown(summary([*(run for run in runs if run["kind"].startswith("tuned")), *longer, *own]), failed=()))


def place(run: dict[str, Any]) -> tuple[str, str, int]:
    return run["model"], run["set"], run["seed"]


def is_crisp(run: dict[str, Any]) -> bool:
    """CRISP as the method describes it, with all of DCO."""
    model = run["description"]["model"]
    options = model["options"]
    gates = options.get("dco") or {}
    steps = [gates.get(step) for step in ("residual", "highpass", "rebalance")]
    return model["name"].startswith("crisp_") and AS_DESCRIBED.items() <= options.items() and steps == [True] * 3


def from_scratch(run: dict[str, Any]) -> dict[str, Any]:
    """As benchmarks/finetuning.py keeps its runs."""
    about, last = run["description"], run["result"]["last"]
    name = next(name for name, (_, protocol, _) in SETS.items() if protocol == (about["data"]["protocol"] or "null"))
    kind = f"scratch{about['schedule']['steps']}"
    return {
        "set": name.replace(" ", "-"), "model": about["model"]["name"], "kind": kind, "seed": about["seed"],
        "mIoU": last["mIoU"],
    }  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
