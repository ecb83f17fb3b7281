"""Score a model on labelled images, or compare two, and write a report.

  crisp eval MODEL DATA                     scores, and a report folder with pictures and a page
  crisp eval A B DATA                       both on the same images: is the difference more than noise?
  crisp eval runs/potsdam-crisp_tiny-1 potsdam --protocol potsdam/paper5 --tta flip --out report
  torchrun --nproc-per-node 4 -m crispseg.cli.main eval MODEL DATA

MODEL is a folder saved by model.save, a training run, or the name of a model that comes with crispseg (`crisp models`
lists them); DATA is a prepared folder or one with images/ and masks/.
The documentation's page "Evaluation" says what each figure means.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from crispseg.cli.words import add_data_arguments
from crispseg.errors import UserError

if TYPE_CHECKING:
    from crispseg.cli.printer import Printer
    from crispseg.data.folder import Folder
    from crispseg.evaluate import Evaluation
    from crispseg.evaluate.opening import Opened
    from crispseg.train.distributed import Processes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="folder of a model or of a training run; two to compare"
    )
    parser.add_argument("data", metavar="DATA", help="a folder with images/ and masks/, your own or a prepared one")
    parser.add_argument("-o", "--out", metavar="DIR", help="the report's folder (default reports/DATA-MODEL-NUMBER)")
    add_data_arguments(parser)
    windows = parser.add_argument_group("windows")
    windows.add_argument("--tile", type=int, help="side of a window, 0 for whole images (default: the protocol's)")
    windows.add_argument("--overlap", type=int, help="least overlap of windows in pixels (default: the protocol's)")
    windows.add_argument("--tta", default="none", help="none, flip (4 views) or d4 (8)")
    windows.add_argument(
        "--scales", type=float, nargs="+", default=[1.0], metavar="S", help="also average over sizes, e.g. 0.75 1 1.25"
    )
    scores = parser.add_argument_group("scores")
    scores.add_argument(
        "--tolerance", default="3px", metavar="LENGTH", help="of boundaries: 3px, or 0.5m where the data has a scale"
    )
    scores.add_argument("--worst", type=int, default=12, metavar="N", help="windows drawn as pictures (%(default)s)")
    machine = parser.add_argument_group("machine")
    machine.add_argument("--device", help="cpu, cuda, cuda:1 ... (an accelerator if there is one)")
    machine.add_argument("--precision", default="float32", choices=("float32", "bfloat16"), help="(%(default)s)")
    machine.add_argument("--batch-size", type=int, help="windows evaluated together (as many as fit in memory)")


def run(args: argparse.Namespace) -> int:
    from crispseg.cli.printer import Printer
    from crispseg.evaluate.opening import open_data, open_model, report_label
    from crispseg.evaluate.report import reserved
    from crispseg.models.device import find_device
    from crispseg.predict.plan import check_tile
    from crispseg.train.distributed import join_processes

    if len(args.models) > 2:
        raise UserError(f"crisp eval compares two models, not {len(args.models)}: crisp eval A B DATA")
    check_tile(args.tile or 0)
    opened = [open_model(path) for path in args.models]
    folder = open_data(args.data, opened, args.protocol, args.classes, args.split_file)
    label = report_label(folder.protocol.dataset, opened)
    with join_processes(str(find_device(args.device))) as processes, reserved(args.out, label, processes.first) as out:
        evaluations = [_evaluate(each, folder, args, processes) for each in opened]
        if processes.first:
            _report(evaluations, out, Printer.of(args))
    return 0


def _evaluate(opened: Opened, folder: Folder, args: argparse.Namespace, processes: Processes) -> Evaluation:
    from crispseg.evaluate import Settings, evaluate
    from crispseg.evaluate.opening import training_notes
    from crispseg.evaluate.progress import Bar

    settings = Settings(
        tile=args.tile,
        overlap=args.overlap,
        tta=args.tta,
        scales=tuple(args.scales),
        precision=args.precision,
        tolerance=args.tolerance,
        batch_size=args.batch_size,
        worst=args.worst,
    )
    with Bar(opened.source, silent=args.quiet or not processes.first) as bar:
        return evaluate(
            opened.model,
            folder,
            args.split,
            settings=settings,
            processes=processes,
            source=opened.source,
            notes=training_notes(opened, folder, args.split),
            progress=bar,
        )


def _report(evaluations: list[Evaluation], folder: Path, out: Printer) -> None:
    from crispseg.evaluate import compare, write_comparison, write_report
    from crispseg.evaluate.tables import headline, per_class

    first = evaluations[0]
    shown = [f"{first.conditions.line}\n"]
    shown += [f"note: {each.source}: {text}\n" for each in evaluations for text in each.notes]
    if len(evaluations) == 1:
        values = first.to_dict()
        shown += [headline(first).markdown(), per_class(first).markdown()]
        page = write_report(first, folder)
    else:
        comparison = compare(first, evaluations[1])
        values = comparison.to_dict()
        shown += [f"A: {first.source}\nB: {evaluations[1].source}\n", comparison.table().markdown()]
        shown += ["\n".join(comparison.sentences()) + "\n"]
        page = write_comparison(comparison, folder)
    out.result({**values, "report": page}, *shown, f"report: {page}")
