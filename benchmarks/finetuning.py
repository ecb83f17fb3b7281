"""What pretrained backbones are worth: models fine-tuned from them beside the same models from scratch.

  python benchmarks/finetuning.py DATA OUT --backbone crisp_nano=vssd_nano --backbone crisp_tiny=RUN/backbone \
    --seeds 0 1 2 --steps 1000 --slots 6 --minutes 5
  python benchmarks/finetuning.py DATA OUT --report             only make the tables from what is in OUT

`--backbone crisp_tiny:half=FOLDER` adds a start under a name of its own, beside the first; --scratch-steps 0 leaves
scratch out. DATA holds vaihingen_fragment, potsdam_fragment, dubai and nz_buildings. A job is one data set and one
seed: all its models train side by side on the same batches, scratch and fine-tuned alike, so the differences are
paired. Jobs run in slots, seed by seed, until all are done or the time is over; what failed or was cut short is left
out, and said.
Writes OUT/finetuning.json and OUT/finetuning.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import scipy.stats

SETS = {
    "vaihingen fold 0": ("vaihingen_fragment", "vaihingen_fragment/fold0", "[near_infrared, red, green]"),
    "vaihingen fold 1": ("vaihingen_fragment", "vaihingen_fragment/fold1", "[near_infrared, red, green]"),
    "vaihingen fold 2": ("vaihingen_fragment", "vaihingen_fragment/fold2", "[near_infrared, red, green]"),
    "potsdam": ("potsdam_fragment", "null", "[red, green, blue]"),
    "dubai": ("dubai", "dubai/own5", "[red, green, blue]"),
    "nz_buildings": ("nz_buildings", "null", "[red, green, blue]"),
}
SCRATCH = "none"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--backbone", action="append", default=[], metavar="MODEL=WEIGHTS")
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1000, help="of fine-tuning and of scratch (%(default)s)")
    parser.add_argument("--scratch-steps", type=int, help="of scratch, where it is to be given more; runs alone then")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--crop", type=int, default=256)
    parser.add_argument("--lr", default="6e-4")
    parser.add_argument("--words", nargs="*", default=[], help="more key=value words of the fine-tuned runs alone")
    parser.add_argument("--all-words", nargs="*", default=[], help="more key=value words of all runs")
    parser.add_argument("--slots", type=int, default=6, help="jobs at a time (%(default)s)")
    parser.add_argument("--minutes", type=float, default=60, help="then what still runs is stopped (%(default)s)")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--job", nargs=2, metavar=("SET", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.job:
        return run_job(args, args.job[0], int(args.job[1]))
    args.out.mkdir(parents=True, exist_ok=True)
    failed = [] if args.report else run_jobs(args, list(sys.argv[1:] if argv is None else argv))
    report(args.out, failed)
    return 0


def run_jobs(args: argparse.Namespace, words: list[str]) -> list[str]:
    """Names of the jobs that did not end well."""
    waiting = [(name, seed) for seed in args.seeds for name in args.sets]
    running: dict[str, subprocess.Popen[bytes]] = {}
    ended: dict[str, int] = {}
    end = time.monotonic() + 60 * args.minutes
    while waiting or running:
        if time.monotonic() > end:
            for process in running.values():
                process.kill()
            ended |= {name: process.wait() for name, process in running.items()}
            return sorted([*(f"{n} seed {s}" for n, s in waiting), *(n for n, code in ended.items() if code)])
        for name in [name for name, process in running.items() if process.poll() is not None]:
            ended[name] = running.pop(name).returncode
            print(f"{name}: {'done' if not ended[name] else f'failed ({ended[name]})'}", flush=True)
        while waiting and len(running) < args.slots:
            name, seed = waiting.pop(0)
            title = f"{name} seed {seed}"
            log = (args.out / f"{title.replace(' ', '-')}.log").open("w")
            command = [sys.executable, __file__, *words, "--job", name, str(seed)]
            running[title] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=dict(os.environ))
        time.sleep(0.2)
    return sorted(name for name, code in ended.items() if code)


def run_job(args: argparse.Namespace, name: str, seed: int) -> int:
    """All models of one data set and seed, on the same batches."""
    from crispseg.train.config import config_from
    from crispseg.train.loop import train_together

    together, alone = [], []
    for model, start, kind in starts(args.backbone, scratch=args.scratch_steps != 0):
        steps = args.scratch_steps if start == SCRATCH and args.scratch_steps else args.steps
        words = run_words(args, name, seed, model, start, f"{kind}{steps}", steps)
        config = config_from({}, [*words, *(args.words if start != SCRATCH else [])])
        (alone if steps != args.steps else together).append(config)
    for configs in ([together] if together else []) + [[config] for config in alone]:
        done = [config for config in configs if not (Path(str(config.out)) / "result.json").exists()]
        if done:
            train_together(done, quiet=len(done) > 1)
    return 0


def starts(backbones: Sequence[str], scratch: bool) -> list[tuple[str, str, str]]:
    """Model, weights and what the start is called; of each model scratch comes first, once."""
    made: list[tuple[str, str, str]] = []
    for word in backbones:
        named, _, weights = word.partition("=")
        model, _, label = named.partition(":")
        if scratch and (model, SCRATCH, "scratch") not in made:
            made.append((model, SCRATCH, "scratch"))
        made.append((model, weights, label or "tuned"))
    return made


def run_words(
    args: argparse.Namespace, name: str, seed: int, model: str, start: str, kind: str, steps: int
) -> list[str]:
    folder, protocol, bands = SETS[name]
    out = args.out / "runs" / f"{name.replace(' ', '-')}_{model}_{kind}_seed{seed}"
    return [
        f"data={args.data / folder}", f"data.protocol={protocol}", f"data.bands={bands}", f"model={model}",
        f"model.weights={start}", f"optimizer.lr={args.lr}", f"schedule.steps={steps}", f"batch_size={args.batch}",
        f"crop={args.crop}", "ema=0.99", f"seed={seed}", "samples=0", "log_every=50", "val_every=1000000",
        "save_every=1000000", "workers=3", f"out={out}", *args.all_words,
    ]  # fmt: skip


def report(out: Path, failed: Sequence[str]) -> None:
    runs = [read_run(path) for path in sorted((out / "runs").glob("*/result.json"))]
    values = {"runs": runs, "failed": list(failed), "summary": summary(runs)}
    (out / "finetuning.json").write_text(json.dumps(values, indent=2) + "\n")
    text = markdown(values["summary"], failed)
    (out / "finetuning.md").write_text(text)
    print(text)


def read_run(path: Path) -> dict[str, Any]:
    name, model, kind, seed = _parts(path.parent.name)
    last = json.loads(path.read_text())["last"]
    scores = {key: last.get(key) for key in ("mIoU", "BF@3px", "OA")}
    return {"set": name, "model": model, "kind": kind, "seed": seed, **scores, "IoU": last.get("IoU")}


def _parts(folder: str) -> tuple[str, str, str, int]:
    """`nz_buildings_crisp_nano_tuned1000_seed0` -> its four parts; names may have underscores."""
    name, _, rest = folder.partition("_crisp_")
    size, kind, seed = rest.split("_")
    return name, f"crisp_{size}", kind, int(seed.removeprefix("seed"))


def summary(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per model, pair of kinds and data set: means, and the paired gain with its 95 % interval over seeds."""
    rows = []
    models = sorted({run["model"] for run in runs})
    sets = sorted({run["set"] for run in runs})
    for model in models:
        kinds = sorted({run["kind"] for run in runs if run["model"] == model})
        for tuned in [kind for kind in kinds if not kind.startswith("scratch")]:
            for scratch in [kind for kind in kinds if kind.startswith("scratch")]:
                every: list[tuple[float, float]] = []
                for name in sets:
                    pairs = paired(runs, model, name, tuned, scratch)
                    if pairs:
                        rows.append(row(model, name, tuned, scratch, pairs))
                        every += pairs
                if every:
                    rows.append(row(model, "all pairs", tuned, scratch, every))
    return rows


def paired(
    runs: Sequence[dict[str, Any]], model: str, name: str, tuned: str, scratch: str
) -> list[tuple[float, float]]:
    by_kind = {
        kind: {
            r["seed"]: 100 * (r["mIoU"] or 0) for r in runs if (r["model"], r["set"], r["kind"]) == (model, name, kind)
        }
        for kind in (tuned, scratch)
    }
    seeds = sorted(set(by_kind[tuned]) & set(by_kind[scratch]))
    return [(by_kind[tuned][seed], by_kind[scratch][seed]) for seed in seeds]


def row(model: str, name: str, tuned: str, scratch: str, pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    gains = [a - b for a, b in pairs]
    spread = statistics.stdev(gains) if len(gains) > 1 else None
    half = None if spread is None else float(scipy.stats.t.ppf(0.975, len(gains) - 1)) * spread / len(gains) ** 0.5
    means = {"tuned_mIoU": statistics.mean(a for a, _ in pairs), "scratch_mIoU": statistics.mean(b for _, b in pairs)}
    gain = {"gain": statistics.mean(gains), "half_interval": half, "pairs": len(pairs)}
    return {"model": model, "set": name, "tuned": tuned, "scratch": scratch, **means, **gain}


def markdown(rows: Sequence[dict[str, Any]], failed: Sequence[str]) -> str:
    lines = ["| model | data | fine-tuned | scratch | gain, 95 % | pairs |", "|---|---|---|---|---|---|"]
    for r in rows:
        both = [f"{r[f'{kind}_mIoU']:.2f} ({r[kind]})" for kind in ("tuned", "scratch")]
        interval = f" ± {r['half_interval']:.2f}" if r.get("half_interval") is not None else ""
        lines.append(
            f"| {r['model']} | {r['set']} | {both[0]} | {both[1]} | {r['gain']:+.2f}{interval} | {r['pairs']} |"
        )
    if failed:
        lines += ["", f"Not finished: {', '.join(failed)}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
