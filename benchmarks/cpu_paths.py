"""The ways to run a model on a CPU, side by side: eager, channels last, fused, ONNX and, if asked for, compiled.

    python benchmarks/cpu_paths.py --threads 2 --compiled
    python benchmarks/cpu_paths.py --ablation --out cpu_ablation.json       what each means of the fused way is worth

All models and ways take turns in one process, batch 1, float32, after each one's output was checked against the model's
own eager output. ONNX needs pip install -c constraints.txt onnx onnxscript onnxruntime; without, its lines say so.
Settings of glibc's allocator (MALLOC_...), which docs/explanation/speed.md speaks of, are kept with the figures.
Results go to benchmarks/results/cpu_paths.json and .md.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import importlib.metadata
import importlib.util
import logging
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from crispseg.bench import specs
from crispseg.bench.check import NETWORK_BOUNDS
from crispseg.bench.contest import Entry, contest
from crispseg.bench.environment import describe, sentence, switches
from crispseg.bench.inputs import random_images
from crispseg.bench.modes import MODES, compiled
from crispseg.bench.result import Cell, ModelCell
from crispseg.bench.settings import Settings, choose
from crispseg.errors import UserError
from crispseg.files import write_json, write_text
from crispseg.models.base import SegmentationModel
from crispseg.ops.dispatch import off

RESULTS = Path(__file__).parent / "results" / "cpu_paths.json"
PRECISION = "fp32"
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# Times over those of the model that is compared with, each in its best way, that we want to stay within.
BARS = {"crisp_nano": 1.0, "crisp_tiny": 3.5}

Network = Callable[[Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Way:
    make: Callable[[SegmentationModel, Settings], Network]
    channels_last: bool  # how it is given its images


def eager(model: SegmentationModel, settings: Settings) -> Network:
    return model


def channels_last(model: SegmentationModel, settings: Settings) -> nn.Module:
    return copy.deepcopy(model).to(memory_format=torch.channels_last)


def fused(model: SegmentationModel, settings: Settings) -> nn.Module:
    return model.fused(graphs=False)


def without(way: str) -> Callable[[SegmentationModel, Settings], Network]:
    """A maker of fused models that run with one of their means switched off."""

    def make(model: SegmentationModel, settings: Settings) -> Network:
        network = fused(model, settings)

        def run(images: Tensor) -> Tensor:
            with off(way):
                return network(images)

        return run

    return make


def onnx(model: nn.Module, settings: Settings) -> Network:
    """The exported program in onnxruntime, with its own threads."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"needs pip install -c constraints.txt {' '.join(missing)}")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.threads
    # Otherwise its threads keep a core busy for a while after a run, at the cost of whoever comes next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(
        exported(model, settings),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["SkipLayerNormFusion"],  # the two in one is slower than one after the other
    )
    (name,) = (given.name for given in session.get_inputs())
    return lambda images: torch.from_numpy(session.run(None, {name: images.numpy()})[0])


def exported(model: nn.Module, settings: Settings) -> bytes:
    images = random_images(1, model.in_channels, settings.sizes[0], settings, seed=0)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore"):
        try:
            program = torch.onnx.export(model, (images,), dynamo=True, verbose=False)
        except torch.onnx.errors.OnnxExporterError as problem:
            raise RuntimeError(f"the export failed: {_root(problem)}") from problem
    return program.model_proto.SerializeToString()


def _root(problem: BaseException) -> str:
    """The exporter wraps what went wrong in pages of advice."""
    while problem.__cause__ is not None:
        problem = problem.__cause__
    return f"{type(problem).__name__}: {problem}"


WAYS = {
    "eager": Way(eager, channels_last=False),
    "channels last": Way(channels_last, channels_last=True),
    "fused": Way(fused, channels_last=True),
    "onnx": Way(onnx, channels_last=False),
    "fused onnx": Way(lambda model, settings: onnx(fused(model, settings), settings), channels_last=False),
    "compiled": Way(lambda model, settings: compiled(channels_last(model, settings)), channels_last=True),
    "fused compiled": Way(lambda model, settings: compiled(fused(model, settings)), channels_last=True),
}
SLOW_TO_MAKE = ("compiled", "fused compiled")
# The fused way without one of its means.
ABLATIONS = {
    "fused, no parts": Way(without("attention_in_parts"), channels_last=True),
    "fused, no Winograd": Way(without("winograd"), channels_last=True),
}
WAYS |= ABLATIONS
MODES |= dict.fromkeys(WAYS, MODES["eager"])  # `contest` runs each as the plain function that it is


def entries(models: dict[str, SegmentationModel], settings: Settings) -> Iterator[Entry]:
    for label, model in models.items():
        images = [random_images(1, model.in_channels, settings.sizes[0], settings, i) for i in range(settings.inputs)]
        truths = [(model(x),) for x in images]
        last = [(x.contiguous(memory_format=torch.channels_last),) for x in images]
        first = [(x,) for x in images]
        for name in settings.modes:
            way = WAYS[name]
            yield Entry(
                cell=ModelCell(
                    model=label,
                    size=settings.sizes[0],
                    batch=1,
                    precision=PRECISION,
                    mode=name,
                    device=settings.device,
                    check_bound=NETWORK_BOUNDS[PRECISION],
                ),
                make=functools.partial(_function, way, model, settings),
                inputs=functools.partial(list, last if way.channels_last else first),
                truths=functools.partial(list, truths),
            )


def _function(way: Way, model: SegmentationModel, settings: Settings, compile_it: bool) -> Any:
    network = way.make(model, settings)
    return lambda images: (network(images),)


def measure(words: Sequence[str], settings: Settings) -> tuple[list[Cell], list[str]]:
    """A cell per model and way, and why models could not take part."""
    models, skipped = {}, []
    for spec in specs.parse(words):
        if missing := specs.skipped(spec):
            skipped.append(f"{missing.model}: {missing.why}")
        else:
            models[spec.label] = specs.build(spec, settings)
    with torch.no_grad():
        return contest(entries(models, settings), settings, lambda text: print(text, file=sys.stderr)), skipped


def rows_of(cells: Sequence[Cell], base: str) -> list[dict[str, Any]]:
    """Figures and ratios; a way that failed or was wrong has none, but a reason."""
    best = best_times(cells)
    own = {cell.subject: cell.latency_ms.median for cell in cells if cell.mode == "eager" and cell.latency_ms}
    rows = []
    for cell in cells:
        time = cell.latency_ms.median if cell.latency_ms else None
        rows.append(
            {
                "model": cell.subject,
                "way": cell.mode,
                "median_ms": time,
                "iqr_ms": cell.latency_ms.iqr if cell.latency_ms else None,
                "to_own_eager": _ratio(time, own.get(cell.subject)),
                "to_base_best": _ratio(time, best.get(base)),
                "error": cell.check_error,
                "setup_seconds": cell.setup_seconds,
                "problem": "" if cell.status == "ok" else f"{cell.status}: {cell.reason}",
            }
        )
    return rows


def best_times(cells: Sequence[Cell]) -> dict[str, float]:
    best: dict[str, float] = {}
    for cell in cells:
        if cell.latency_ms:
            best[cell.subject] = min(cell.latency_ms.median, best.get(cell.subject, float("inf")))
    return best


def verdicts(rows: Sequence[dict[str, Any]], base: str) -> list[str]:
    """Each model's best way against the base's best."""
    said = []
    for model in dict.fromkeys(row["model"] for row in rows):
        timed = [row for row in rows if row["model"] == model and row["median_ms"] is not None]
        if not timed:
            said.append(f"{model}: no way gave a time.")
            continue
        best = min(timed, key=lambda row: row["median_ms"])
        text = f"{model} is fastest {best['way']}"
        if model != base and best["to_base_best"] is not None:
            text += f", {best['to_base_best']:.2f} x the time of {base} in its best way"
            if model in BARS:
                text += f" (the bar is {BARS[model]}: {'' if best['to_base_best'] <= BARS[model] else 'not '}reached)"
        said.append(text + ".")
    return said


def markdown(facts: dict[str, Any]) -> str:
    base = facts["base"]
    lines = [
        "# Ways to run a model on a CPU",
        "",
        f"`{facts['command']}`",
        "",
        f"{sentence(facts['environment'])}; {facts['packages']}; {facts['allocator']}.",
        "",
        f"{facts['size']} px, batch 1, float32. Median and interquartile range of {facts['repeats']} runs, in turn.",
        "Error: relative, against the model's own eager output. Setup: making it ready and checking it.",
        "",
        f"| model | way | ms | x its own eager | x best of {base} | error | setup, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in facts["rows"]:
        time = f"{row['median_ms']:.1f} ± {row['iqr_ms']:.1f}" if row["median_ms"] is not None else row["problem"]
        values = [row["model"], row["way"], time.replace("|", "\\|")]
        formats = {"to_own_eager": ".2f", "to_base_best": ".2f", "error": ".1e", "setup_seconds": ".0f"}
        values += ["" if row[key] is None else format(row[key], style) for key, style in formats.items()]
        lines.append("| " + " | ".join(values) + " |")
    remarks = [*facts["verdicts"], *(f"{why}." for why in facts["skipped"])]
    return "\n".join([*lines, "", *(f"- {remark}" for remark in remarks)]) + "\n"


def _ratio(time: float | None, base: float | None) -> float | None:
    return None if time is None or base is None else time / base


def _packages() -> str:
    found = [name for name in PACKAGES if importlib.util.find_spec(name)]
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in found) or "no onnxruntime"


def _allocator() -> str:
    chosen = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("MALLOC_")]
    return " ".join(chosen) or "the allocator as it is"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(specs.DEFAULT), help="default: %(default)s")
    parser.add_argument("--base", default="unetformer_r18", help="the model whose best way is compared with")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--compiled", action="store_true", help="torch.compile too, which takes minutes")
    parser.add_argument(
        "--ablation", action="store_true", help="only the fused way, with and without each of its means"
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="these only")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.base not in args.models:
        parser.error(f"--base {args.base} is not among the models: {', '.join(args.models)}")
    usual = [name for name in WAYS if name not in ABLATIONS and (args.compiled or name not in SLOW_TO_MAKE)]
    ways = args.ways or (["fused", *ABLATIONS] if args.ablation else usual)
    settings = choose(
        "cpu",
        sizes=[args.size],
        modes=ways,
        repeats=args.repeats,
        warmup=2,
        threads=args.threads,
        layout="contiguous",
    )
    with switches(settings):
        cells, skipped = measure(args.models, settings)
    rows = rows_of(cells, args.base)
    facts = {
        "command": "python " + shlex.join(["benchmarks/cpu_paths.py", *sys.argv[1:]]),
        "environment": describe(settings),
        "packages": _packages(),
        "allocator": _allocator(),
        "base": args.base,
        "size": args.size,
        "repeats": args.repeats,
        "rows": rows,
        "verdicts": verdicts(rows, args.base),
        "skipped": skipped,
    }
    text = markdown(facts)
    write_json(args.out, facts)
    write_text(args.out.with_suffix(".md"), text)
    print(text)


if __name__ == "__main__":
    main()
