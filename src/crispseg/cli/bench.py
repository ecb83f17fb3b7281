"""Speed and memory of models, side by side; no number without a check of the output.

  crisp bench [MODEL ...]             latency, throughput, memory, MACs and parameters of each model
  crisp bench scaling MODEL [...]     time and memory per pixel as images grow, batches shrinking alike
  crisp bench ops                     the operator alone: each backend, forward and backward
  crisp bench compare FILE            ratios of a saved result, with --relative-to

MODEL is a registered name, a pattern of names, a folder written by model.save(), or a name with options:
crisp_nano:width=16,depths=[1,1,2,1]. Results go to --out as JSON, Markdown and a plot. The exit status is 1 if
any output was wrong.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crispseg.cli.existing import add_existing

if TYPE_CHECKING:
    from crispseg.bench.result import Result
    from crispseg.cli.printer import Printer

_ACTIONS = ("scaling", "ops", "compare")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "crisp bench [scaling | ops | compare] [MODEL ...] [options]"
    parser.add_argument("words", nargs="*", metavar="MODEL", help="models, or one of the actions above and its models")
    add = parser.add_argument
    add("--sizes", type=int, nargs="+", metavar="N", help="image sides in pixels (default 512)")
    add("--batch", type=int, nargs="+", metavar="N", help="images at a time (default 1; on CUDA 1 and 16)")
    add("--precision", nargs="+", metavar="P", help="fp32, bf16, fp16 (default fp32; on CUDA fp32 and bf16)")
    add("--modes", nargs="+", metavar="MODE", help="eager, graph (CUDA only), compiled, fused (default all there are)")
    add("--skip", nargs="+", metavar="MODEL@MODE", help="leave these out, such as what takes long to compile")
    add("--device", help="cpu or cuda (default cuda where there is one)")
    add("-o", "--out", default="runs/bench", metavar="DIR", help="where results go (default %(default)s)")
    add("--relative-to", metavar="MODEL[@MODE]", help="add ratios to this model's figures, in the same or that mode")
    add("--repeats", type=int, metavar="N", help="timed runs of each (default 10; on CUDA 30)")
    add("--warmup", type=int, metavar="N", help="runs before them (default 1; on CUDA 10)")
    add("--threads", type=int, metavar="N", help="CPU threads (default torch's own number)")
    add("--layout", help="channels_last or contiguous, for all (default channels_last)")
    add("--half", help="bf16 and fp16 by casting `weights`, or by `autocast` (default weights)")
    add("--classes", type=int, metavar="N", help="classes of models given by name (default 6)")
    add("--bands", type=int, metavar="N", help="bands of models given by name (default 3)")
    add("--pixels", type=int, metavar="N", help="scaling: pixels in a batch (default those of the largest size)")
    add("--backends", nargs="+", metavar="B", help="ops: operator backends (default all)")
    add("--stages", type=int, nargs="+", metavar="N", help="ops: stages whose shapes are taken, 1 to 4 (default 1)")
    add_existing(parser, ("refuse", "replace"))


def run(args: argparse.Namespace) -> int:
    from crispseg.bench import tables
    from crispseg.cli.printer import Printer

    out = Printer.of(args)
    if args.words[:1] == ["compare"]:
        result = _saved(args)
        out.result(tables.values(result, args.relative_to), *tables.shown(result, args.relative_to))
        return 0
    _check_place(args)
    result = _measure(args, out)
    relative_to = args.relative_to or ""
    for note in _save(result, Path(args.out), relative_to, with_plot=True):
        out.say(note)
    out.result(tables.values(result, relative_to), *tables.shown(result, relative_to))
    return 1 if result.wrong else 0


def _check_place(args: argparse.Namespace) -> None:
    """Before anything is measured: the folder can be written to, and results that are there already stay."""
    from crispseg.files import check_folder
    from crispseg.outputs import check_existing

    action, _ = _split(args.words)
    name = "bench" if action == "models" else action
    check_folder(args.out)
    check_existing((Path(args.out) / f"{name}.{ending}" for ending in ("json", "md", "png")), args.existing)


def _measure(args: argparse.Namespace, out: Printer) -> Result:
    import dataclasses

    from crispseg import bench

    action, words = _split(args.words)
    settings = _settings(args, action)
    command = _command(args)
    if args.relative_to:
        _check_base(args.relative_to, action, words, args.backends)

    def keep(result: Result) -> None:
        """A run cut short leaves what it has measured."""
        _save(dataclasses.replace(result, command=command), Path(args.out), "", with_plot=False)

    if action == "scaling":
        result = bench.bench_scaling(words, settings, args.pixels, out.say, keep)
    elif action == "ops":
        result = bench.bench_ops(settings, args.backends, args.stages or (1,), out.say, keep)
    else:
        result = bench.bench_models(words, settings, out.say, keep)
    return dataclasses.replace(result, command=command)


def _split(words: list[str]) -> tuple[str, list[str]]:
    from crispseg.errors import UserError

    action = words[0] if words and words[0] in _ACTIONS else "models"
    rest = words[1:] if action != "models" else words
    if action == "ops" and rest:
        raise UserError(f"crisp bench ops times the operator and takes no model, but {rest[0]!r} was given")
    return action, rest


def _settings(args: argparse.Namespace, action: str) -> Any:
    from crispseg.bench.settings import choose

    given = {
        "sizes": args.sizes,
        "batches": args.batch,
        "precisions": args.precision,
        "modes": args.modes,
        "skip": args.skip,
        "repeats": args.repeats,
        "warmup": args.warmup,
        "threads": args.threads,
        "layout": args.layout,
        "half": args.half,
        "num_classes": args.classes,
        "in_channels": args.bands,
    }
    if action == "scaling":
        given |= _scaling_defaults(args)
    if action == "ops":
        given["modes"] = _operator_modes(args)
    return choose(args.device, **given)


def _on_cuda(args: argparse.Namespace) -> bool:
    import torch

    return (args.device or ("cuda" if torch.cuda.is_available() else "cpu")).startswith("cuda")


def _operator_modes(args: argparse.Namespace) -> list[str]:
    from crispseg.errors import UserError

    if "fused" in (args.modes or ()):
        raise UserError("mode 'fused' is a way to run whole models; crisp bench ops has eager, graph and compiled")
    return args.modes or (["eager", "graph", "compiled"] if _on_cuda(args) else ["eager", "compiled"])


def _scaling_defaults(args: argparse.Namespace) -> dict[str, Any]:
    """One precision and mode unless told: it is the sizes that are compared."""
    from crispseg.errors import UserError

    if args.batch:
        raise UserError("crisp bench scaling chooses the batch by the size; give --pixels instead of --batch")
    cuda = _on_cuda(args)
    return {
        "sizes": args.sizes or ([256, 512, 1024, 2048, 4096] if cuda else [256, 512, 1024]),
        "precisions": args.precision or (["bf16"] if cuda else ["fp32"]),
        "modes": args.modes or (["graph"] if cuda else ["eager"]),
        "inputs": 2,
    }


def _check_base(relative_to: str, action: str, words: list[str], backends: list[str] | None) -> None:
    """Before anything is measured: the model to compare with takes part."""
    from crispseg.bench import specs, tables
    from crispseg.ops import BACKENDS

    if action == "ops":
        tables.check_base(relative_to, backends or BACKENDS)
    else:
        tables.check_base(relative_to, [spec.label for spec in specs.parse(words) if not specs.skipped(spec)])


def _save(result: Result, folder: Path, relative_to: str, with_plot: bool) -> list[str]:
    """Write the result; say where, and why there is no plot if there is none."""
    from crispseg.bench import plot, tables
    from crispseg.bench.result import write
    from crispseg.files import write_text

    name = "bench" if result.kind == "models" else result.kind
    write(result, folder / f"{name}.json")
    write_text(folder / f"{name}.md", tables.markdown(result, relative_to))
    picture = folder / f"{name}.png"
    why_not = plot.draw(result, picture) if with_plot else "not yet"
    saved = [folder / f"{name}.json", folder / f"{name}.md"] + ([] if why_not else [picture])
    return [f"saved {', '.join(map(str, saved))}", *([why_not] if why_not else [])]


def _saved(args: argparse.Namespace) -> Result:
    from crispseg.bench import read
    from crispseg.errors import UserError

    if len(args.words) != 2 or not args.relative_to:
        raise UserError("crisp bench compare takes one result file and --relative-to MODEL")
    return read(args.words[1])


def _command(args: argparse.Namespace) -> str:
    """The command line that says the same."""
    words = ["crisp", "bench", *args.words]
    for name, value in vars(args).items():
        if name not in ("words", "json", "quiet", "existing") and value is not None:
            words += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
    return shlex.join(words)
