"""python -m campaigns.kill --seed 0 --rounds 1000 --out benchmarks/results/kill"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from campaigns.kill import disk
from campaigns.kill.cases import Case, cases
from campaigns.kill.records import Played, read_record, write_record
from campaigns.kill.rounds import Round, Whole, play, run_whole
from campaigns.record import about

FAILING = {True: "at any library's writes", False: "at Python's calls only"}


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill runs, take them up again, compare the bytes.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="the number of the first round, to play one again")
    parser.add_argument("--minutes", type=float, help="begin no round after so many")
    parser.add_argument("--cases", nargs="+", choices=tuple(cases()), help="only these (all, ray and ablate seldom)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the files of rounds with differences there")
    parser.add_argument("--out", type=Path, metavar="FILE", help="record as FILE.json and FILE.md")
    parser.add_argument("--join", type=Path, nargs="+", metavar="FILE", help="play nothing, make one record of these")
    args = parser.parse_args()
    if args.join:
        return join(args)
    if disk.library() is None and disk.PRELOADED not in os.environ:
        return with_failing_disk()
    torch.set_num_threads(1)  # threads of this process would not be there in its children
    facts = {**about(), "load": f"{os.getloadavg()[1]:.1f}", "failing disk": FAILING[disk.library() is not None]}
    played = Played(facts, args.seed, {})
    # what was played before somebody asked to stop is recorded
    with tempfile.TemporaryDirectory(prefix="crisp-kill-") as folder, contextlib.suppress(KeyboardInterrupt):
        play_all(args, args.keep or Path(folder), played.rounds)
    print(played)
    if args.out is not None:
        write_record(args.out, [played])
    return 1 if any(each.faults for each in played.rounds.values()) else 0


def join(args: argparse.Namespace) -> int:
    parts = [part for path in args.join for part in read_record(path)]
    write_record(args.out, parts)
    return 0


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


def play_all(args: argparse.Namespace, folder: Path, rounds: dict[int, Round]) -> None:
    known = {name: case for name, case in cases().items() if name in (args.cases or cases()) and able(case)}
    names, weights = list(known), [case.weight for case in known.values()]
    wholes: dict[str, Whole] = {}
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


def tell(number: int, played: Round) -> None:
    print(f"round {number} {played.case}, {played.seconds:.0f} s: {'; '.join(played.troubles)}", flush=True)
    for fault in played.faults:
        print(f"  FAULT {fault}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
