"""Turn a finished training run into a model that comes with the package.

  python tools/ship_model.py RUN --data FOLDER --name crisp_nano_dubai
  python tools/ship_model.py RUN --data FOLDER --name crisp_nano_dubai --weights last --device cuda --note "..."

Scores the weights on the validation split in float32 and as stored in half precision, refuses them if the two differ by
more than 0.1 mIoU or the file is too large, and writes src/crispseg/shipped/NAME: config.json, model.safetensors,
README.md (the model card) and pictures of the worst failures. Only data sets listed in DATA below may be shipped.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from model_card import DATA, DataFacts, Shipment, card

from crispseg.data.folder import Folder
from crispseg.errors import UserError
from crispseg.evaluate import Evaluation, Settings, evaluate
from crispseg.evaluate.opening import Opened, open_data, open_model
from crispseg.evaluate.pictures import draw_worst
from crispseg.evaluate.progress import Bar
from crispseg.evaluate.worst import WorstWindow
from crispseg.files import replacing, write_text
from crispseg.models.base import SegmentationModel
from crispseg.models.folder import CARD, WEIGHTS, load, save
from crispseg.train.checkpoint import LAST, load_checkpoint

SHIPPED = Path(__file__).parents[1] / "src" / "crispseg" / "shipped"
LARGEST = 16 * 2**20  # bytes of the weights
TOLERANCE = 0.001  # of mIoU: what half precision may cost
FAILURES = 4


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a finished training run, or its best/")
    parser.add_argument("--data", required=True, help="the data folder it was trained on")
    parser.add_argument("--name", required=True, help="what `crispseg.load` will call it")
    parser.add_argument("--weights", choices=("best", "last"), default="best")
    parser.add_argument("--note", default="", help="a paragraph for the card, e.g. on how the recipe was found")
    parser.add_argument("--out", type=Path, default=SHIPPED, help="the folder of shipped models (%(default)s)")
    parser.add_argument("--largest", type=int, default=LARGEST, help="bytes the weights may take (%(default)s)")
    parser.add_argument("--device", help="cpu, cuda ... (an accelerator if there is one)")
    args = parser.parse_args(argv)
    try:
        print(ship(args))
    except UserError as error:
        print(f"ship_model: {error}", file=sys.stderr)
        return 1
    return 0


def ship(args: argparse.Namespace) -> Path:
    opened = open_model(args.run)
    if opened.run is None:
        raise UserError(f"{args.run} does not lie in a training run; its config is needed for the model card")
    folder = open_data(args.data, [opened])
    facts = _facts(folder)
    model = opened.model
    if args.weights == "last":
        _take_last(model, opened.run)
    full = _score(model, folder, args.device, f"{args.name} in float32")
    with tempfile.TemporaryDirectory() as place:
        aside = Path(place) / args.name
        save(model, aside, half=True)
        _check_size(aside / WEIGHTS, args.largest)
        scored = _score(load(aside), folder, args.device, args.name)
    _check_scores(full, scored)
    model.info = dataclasses.replace(
        model.info,
        training_data=f"{facts.imagery}: {_trained_on(opened, folder)}",
        licence=f"weights Apache-2.0; trained on data in the public domain ({facts.licence})",
        scores=_kept_scores(scored),
        notes=facts.limits,
    )
    failures = worst_of_each(scored.worst, FAILURES)
    shipment = Shipment(args.name, model, opened.run, args.weights, facts, full, scored, failures, args.note)
    return _write(shipment, args.out / args.name)


def _facts(folder: Folder) -> DataFacts:
    dataset = folder.protocol.dataset
    if dataset not in DATA:
        raise UserError(
            f"nothing trained on {dataset!r} is shipped: its licence is not in tools/model_card.py, which has "
            f"{', '.join(DATA)}"
        )
    return DATA[dataset]


def _trained_on(opened: Opened, folder: Folder) -> str:
    """The training split as the run's own card has it; the scores' split must be of the same protocol."""
    trained = opened.model.info.training_data
    if f"#{folder.protocol.hash}," not in trained:
        raise UserError(f"the model was trained on {trained or 'unknown data'}, not under {folder.protocol.name}")
    return trained


@torch.no_grad()
def _take_last(model: SegmentationModel, run: Path) -> None:
    state = load_checkpoint(run / LAST)
    model.load_state_dict(state["model"])
    if state["average"] is not None:  # the moving average is what validates and is kept
        for parameter, average in zip(model.parameters(), state["average"]["average"], strict=True):
            parameter.copy_(average)


def _score(model: SegmentationModel, folder: Folder, device: str | None, label: str) -> Evaluation:
    settings = Settings(worst=10 * FAILURES, spectrum_images=0)
    with Bar(label) as bar:
        return evaluate(model, folder, "val", settings=settings, device=device, source=label, progress=bar)


def _check_size(path: Path, largest: int) -> None:
    size = path.stat().st_size
    if size > largest:
        raise UserError(f"the weights take {size / 2**20:.1f} MiB in half precision; {largest / 2**20:g} are allowed")


def _check_scores(full: Evaluation, half: Evaluation) -> None:
    lost = abs(full.scores.miou - half.scores.miou)
    if not lost <= TOLERANCE:
        raise UserError(
            f"half precision changes mIoU from {100 * full.scores.miou:.2f} to {100 * half.scores.miou:.2f}; "
            f"at most {100 * TOLERANCE:g} is allowed"
        )


def _kept_scores(evaluation: Evaluation) -> dict[str, Any]:
    names = evaluation.conditions.protocol.classes
    per_class = {f"IoU {name}": float(value) for name, value in zip(names, evaluation.scores.iou, strict=True)}
    return {"protocol": evaluation.conditions.line, **evaluation.headline, **per_class}


def worst_of_each(windows: Sequence[WorstWindow], limit: int) -> list[WorstWindow]:
    """The worst windows, one from an image, so that they show different failures."""
    first: dict[int, WorstWindow] = {}
    for window in windows:
        first.setdefault(window.index, window)
    return list(first.values())[:limit]


def _write(shipment: Shipment, target: Path) -> Path:
    """The whole folder takes the place of an older one."""
    protocol = shipment.scored.conditions.protocol
    with replacing(target) as aside:
        save(shipment.model, aside, half=True)
        for number, window in enumerate(shipment.failures, 1):
            picture = draw_worst(window, protocol.classes, protocol.palette)
            picture.save(aside / shipment.picture(number), "jpeg", quality=82, subsampling=0, optimize=True)
        write_text(aside / CARD, card(shipment))
        shutil.rmtree(target, ignore_errors=True)
    return target


if __name__ == "__main__":
    sys.exit(main())
