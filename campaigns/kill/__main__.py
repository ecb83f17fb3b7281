"""python -m campaigns.kill --seed 0 --rounds 1000 --out benchmarks/results/kill"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from campaigns.kill import disk
from campaigns.kill.cases import Case, cases
from campaigns.kill.rounds import Round, Whole, play, run_whole
from campaigns.record import about
from crispseg.files import write_json, write_text


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill runs, take them up again, compare the bytes.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="the number of the first round, to play one again")
    parser.add_argument("--minutes", type=float, help="begin no round after so many")
    parser.add_argument("--cases", nargs="+", choices=tuple(cases()), help="only these (all, ray and ablate seldom)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the files of rounds with differences there")
    parser.add_argument("--out", type=Path, metavar="FILE", help="record as FILE.json and FILE.md")
    args = parser.parse_args()
    if disk.library() is None and disk.PRELOADED not in os.environ:
        return with_failing_disk()
    torch.set_num_threads(1)  # threads of this process would not be there in its children
    with tempfile.TemporaryDirectory(prefix="crisp-kill-") as folder:
        rounds, seconds = play_all(args, args.keep or Path(folder))
    faults = [(number, each) for number, each in rounds.items() if each.faults]
    said = (
        f"{len(rounds)} rounds of seed {args.seed}: {sum(r.kills for r in rounds.values())} kills, "
        f"{sum(len(r.troubles) for r in rounds.values())} troubles, {len(faults)} differences in {seconds:.0f} s"
    )
    print(said)
    if args.out is not None:
        record(args.out, args.seed, rounds, said)
    return 1 if faults else 0


def with_failing_disk() -> int:
    """The same command once more, in a process whose libraries all write to a disk that can fail."""
    with disk.compiled() as more:
        command = [sys.executable, "-m", "campaigns.kill", *sys.argv[1:]]
        return subprocess.run(command, env={**os.environ, disk.PRELOADED: "", **more}).returncode


def able(case: Case) -> bool:
    """Import what the case needs; cases for which something is not installed are left out, and that is said."""
    try:
        for name in case.needs:
            importlib.import_module(name)
    except ImportError as error:
        print(f"{case.name} is left out: {error}", file=sys.stderr)
        return False
    return True


def play_all(args: argparse.Namespace, folder: Path) -> tuple[dict[int, Round], float]:
    known = {name: case for name, case in cases().items() if name in (args.cases or cases()) and able(case)}
    names, weights = list(known), [case.weight for case in known.values()]
    wholes: dict[str, Whole] = {}
    rounds: dict[int, Round] = {}
    begun = time.monotonic()
    for number in range(args.first, args.first + args.rounds):
        if args.minutes is not None and time.monotonic() - begun > 60 * args.minutes:
            break
        rng = random.Random(f"{args.seed}/{number}")
        name = rng.choices(names, weights)[0]
        if name not in wholes:
            wholes[name] = run_whole(known[name], folder / name)
        place = folder / name / f"round-{number}"
        rounds[number] = play(known[name], wholes[name], rng, place)
        tell(number, rounds[number])
        if not rounds[number].faults:
            shutil.rmtree(place)
    return rounds, time.monotonic() - begun


def tell(number: int, played: Round) -> None:
    print(f"round {number} {played.case}, {played.seconds:.0f} s: {'; '.join(played.troubles)}", flush=True)
    for fault in played.faults:
        print(f"  FAULT {fault}", flush=True)


def record(path: Path, seed: int, rounds: dict[int, Round], said: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    failing = "at any library's writes" if disk.library() is not None else "at Python's calls only"
    facts: dict[str, Any] = {**about(), "seed": seed, "load": f"{os.getloadavg()[1]:.1f}", "failing disk": failing}
    rows = []
    for case in sorted({each.case for each in rounds.values()}):
        own = [each for each in rounds.values() if each.case == case]
        kinds = Counter(trouble.split(" ")[0] for each in own for trouble in each.troubles)
        rows.append([case, len(own), sum(each.kills for each in own), sum(bool(each.faults) for each in own), kinds])
    write_json(
        path.with_suffix(".json"),
        {"about": facts, "rounds": {str(k): dataclasses.asdict(each) for k, each in rounds.items()}},
    )
    lines = ["# Kill campaign", "", said + ".", "", *(f"- {key}: {value}" for key, value in facts.items()), ""]
    lines += ["| case | rounds | killed | differences | troubles |", "|---|---|---|---|---|"]
    for case, count, kills, faults, kinds in rows:
        lines.append(f"| {case} | {count} | {kills} | {faults} | {', '.join(f'{k} {n}' for k, n in kinds.items())} |")
    write_text(path.with_suffix(".md"), "\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
