"""Damage every kind of file we read, and read it: each case ends in success or a UserError, within 20 s of processor
time and 2 GiB, without network, other programs or files outside its folder.

    python -m campaigns.fuzz --cases 100000 --seed 1 --jobs 2 --out benchmarks/results/fuzz/seed1
    python -m campaigns.fuzz --seed 1 --only 4711          one case again, with what was said
    python -m campaigns.fuzz --minutes 60                  as many as fit

Cases are made from the seed and their number alone, so any machine can repeat them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import wait
from pathlib import Path

from campaigns.fuzz.cases import SECONDS, Bench, Outcome, limit_memory
from campaigns.fuzz.workers import Worker
from campaigns.record import about

_AT_ONCE = 200  # cases given to a worker


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--minutes", type=float, help="stop then, whatever --cases says")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", type=int, help="run this one case and print what came of it")
    parser.add_argument("--target", action="append", default=[], help="only these kinds of file")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    try:
        if args.only is not None:
            return _only(args, root)
        outcomes, seconds = _campaign(args, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    record = _record(args, outcomes, seconds)
    text = _markdown(record)
    if args.out:
        args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        args.out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    return 1 if record["faults"] else 0


def _only(args: argparse.Namespace, root: Path) -> int:
    bench = Bench(root, args.seed, args.target)
    limit_memory()
    outcome = bench.run(args.only)
    print(json.dumps(dataclasses.asdict(outcome), indent=1))
    return outcome.ended == "fault"


def _campaign(args: argparse.Namespace, root: Path) -> tuple[list[Outcome], float]:
    """Workers take cases in blocks; one that dies or hangs is a fault of the case it had, and is replaced."""
    start = time.monotonic()
    waiting = list(range(args.first, args.first + args.cases))[::-1]
    workers: list[Worker] = []
    outcomes: list[Outcome] = []
    shown = start
    while waiting or any(worker.numbers for worker in workers):
        if args.minutes is not None and time.monotonic() - start > 60 * args.minutes:
            waiting.clear()
        workers = [worker for worker in workers if worker.process.is_alive() or worker.numbers]
        while len(workers) < args.jobs and waiting:
            workers.append(Worker(root / f"{len(outcomes)}-{len(workers)}", args.seed, args.target))
        for worker in workers:
            if not worker.numbers and waiting:
                worker.give([waiting.pop() for _ in range(min(_AT_ONCE, len(waiting)))])
        wait([worker.pipe for worker in workers], timeout=1)
        for worker in workers:
            for outcome in worker.collect(waiting):
                outcomes.append(outcome)
                if outcome.ended == "fault":
                    print(f"case {outcome.number}: {outcome.target}, {outcome.place}: {outcome.said}", file=sys.stderr)
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            faults = sum(outcome.ended == "fault" for outcome in outcomes)
            print(f"{len(outcomes)} cases, {faults} faults, {shown - start:.0f} s", file=sys.stderr, flush=True)
    for worker in workers:
        worker.process.kill()
    return outcomes, time.monotonic() - start


def _record(args: argparse.Namespace, outcomes: list[Outcome], seconds: float) -> dict[str, object]:
    counts: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        counts.setdefault(outcome.target, Counter())[outcome.ended] += 1
    faults = sorted((o for o in outcomes if o.ended == "fault"), key=lambda o: (o.place, o.said, o.number))
    return {
        **about(),
        "seed": args.seed,
        "cases": len(outcomes),
        "first": args.first,
        "minutes": round(seconds / 60, 1),
        "jobs": args.jobs,
        "longest_seconds": max((outcome.seconds for outcome in outcomes), default=0.0),
        "limits": {"seconds": SECONDS, "bytes": 2 << 30},
        "targets": {name: dict(counts[name]) for name in sorted(counts)},
        "faults": [dataclasses.asdict(fault) for fault in faults],
    }


def _markdown(record: dict[str, object]) -> str:
    targets, faults = record["targets"], record["faults"]
    assert isinstance(targets, dict) and isinstance(faults, list)
    lines = [
        "# Fuzz campaign",
        "",
        f"`{record['command']}` at commit {record['commit']}: {record['cases']} cases of seed {record['seed']} in "
        f"{record['minutes']} minutes ({record['jobs']} at a time), {len(faults)} faults; the longest took "
        f"{record['longest_seconds']} s. A case damages one file and reads it; it may succeed (read) or raise a "
        "UserError (refused) within 20 s of processor time and 2 GiB. Anything else is a fault.",
        "",
        "| what is read | cases | read | refused | faults |",
        "|---|---|---|---|---|",
    ]
    for name, counts in targets.items():
        numbers = [counts.get(kind, 0) for kind in ("read", "refused", "fault")]
        lines.append(f"| {name} | {sum(numbers)} | {' | '.join(map(str, numbers))} |")
    if faults:
        places = Counter((fault["place"], fault["said"][:100], fault["target"]) for fault in faults)
        lines += ["", "## Faults", ""]
        for (place, said, target), count in places.most_common(60):
            example = next(f["number"] for f in faults if (f["place"], f["said"][:100]) == (place, said))
            lines.append(f"- {count} x {target}, {place or 'outside our code'}: {said} (e.g. case {example})")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
