"""Look into a trained model on labelled images: spectra, gates, prototypes and errors, on a page with pictures.

  crisp analyze MODEL DATA                          the paper's figures, of 16 images, 4 of them drawn
  crisp analyze MODEL DATA --against OTHER          beside another model, e.g. one trained without DCO
  crisp analyze runs/dubai-crisp_nano-1 data/dubai --split val --images 0 --focus building --out figures

MODEL is a folder saved by model.save, a training run, or the name of a model that comes with crispseg (`crisp models`
lists them); DATA is a prepared folder or one with images/ and masks/.
The documentation's page "Looking into a model" says how to read each figure.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from crispseg.cli.words import add_data_arguments

if TYPE_CHECKING:
    from crispseg.analysis import Analysis, Settings
    from crispseg.data.folder import Folder
    from crispseg.evaluate.opening import Opened


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="folder of a model or of a training run")
    parser.add_argument("data", metavar="DATA", help="a folder with images/ and masks/, your own or a prepared one")
    parser.add_argument("--against", metavar="MODEL", help="another model to set beside it, on the same images")
    parser.add_argument("-o", "--out", metavar="DIR", help="the folder (default reports/analysis-DATA-MODEL-NUMBER)")
    add_data_arguments(parser)
    looks = parser.add_argument_group("looks")
    looks.add_argument("--images", type=int, default=16, metavar="N", help="looked at, 0 for all (%(default)s)")
    looks.add_argument("--pictures", type=int, default=4, metavar="N", help="of those, drawn (%(default)s)")
    looks.add_argument(
        "--limit", type=int, default=1024, metavar="PX", help="of larger images the middle is taken (%(default)s)"
    )
    looks.add_argument(
        "--band", type=float, default=3, metavar="PX", help="so near to a boundary counts as near (%(default)s)"
    )
    looks.add_argument(
        "--cutoff", type=float, default=0.5, metavar="F", help="high frequencies begin here, of Nyquist (%(default)s)"
    )
    looks.add_argument("--focus", metavar="CLASS", help="draw the prototypes of this class (the most frequent one)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ... (an accelerator if there is one)")


def run(args: argparse.Namespace) -> int:
    from crispseg.analysis import Settings, write_analysis
    from crispseg.analysis.tables import scores
    from crispseg.cli.printer import Printer
    from crispseg.evaluate.opening import open_data, open_model, report_label
    from crispseg.evaluate.report import reserved

    opened = [open_model(path) for path in (args.model, args.against) if path is not None]
    folder = open_data(args.data, opened, args.protocol, args.classes, args.split_file)
    settings = Settings(args.images, args.pictures, args.limit, args.band, args.cutoff, args.focus)
    label = f"analysis-{report_label(folder.protocol.dataset, opened[:1])}"
    with reserved(args.out, label, first=True) as place:
        analysis = _analyze(opened, folder, settings, args)
        page = write_analysis(analysis, place)
    out = Printer.of(args)
    for text in analysis.notes:
        out.say(f"note: {text}")
    shown = (f"{analysis.conditions.line}\n", scores(analysis).markdown(), f"analysis: {page}")
    out.result({**analysis.to_dict(), "page": page}, *shown)
    return 0


def _analyze(opened: list[Opened], folder: Folder, settings: Settings, args: argparse.Namespace) -> Analysis:
    from crispseg.analysis import analyze
    from crispseg.cli.printer import Printer
    from crispseg.evaluate.opening import training_notes

    own, other = opened[0], opened[1] if len(opened) > 1 else None
    notes = [f"{each.source}: {text}" for each in opened for text in training_notes(each, folder, args.split)]
    return analyze(
        own.model,
        folder,
        args.split,
        against=None if other is None else other.model,
        settings=settings,
        device=args.device,
        source=own.source,
        against_source="" if other is None else other.source,
        notes=notes,
        on_image=_say_nothing if Printer.of(args).quiet else _say,
    )


def _say_nothing(done: int, images: int) -> None:
    """For --quiet."""


def _say(done: int, images: int) -> None:
    """On a terminal one line that counts; elsewhere only the end."""
    if sys.stderr.isatty() or done == images:
        print(f"\rimage {done} of {images}", end="\n" if done == images else "", file=sys.stderr, flush=True)
