"""Turn a finished training run into a model that comes with the package.

  python tools/ship_model.py RUN --data FOLDER --name crisp_nano_aerial
  python tools/ship_model.py RUN --data FOLDER --name crisp_nano_aerial --weights last --device cuda --note "..."

Scores the weights on the validation split in float32 and as stored in half precision, refuses them if the two differ by
more than 0.1 mIoU or the file is too large, and writes src/crispseg/shipped/NAME: config.json, model.safetensors,
README.md (the model card) and pictures of the worst failures. Only what was trained on sets in model_card.DATA may be
shipped. Classes get the colours people expect.
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

import numpy as np
import torch
from model_card import Shipment, card, facts_of
from PIL import Image

from crispseg.data.colours import class_colours
from crispseg.data.folder import Folder, open_folder
from crispseg.errors import UserError
from crispseg.evaluate import Evaluation, Settings, evaluate
from crispseg.evaluate.opening import Opened, open_data, open_model
from crispseg.evaluate.pictures import draw_worst
from crispseg.evaluate.progress import Bar
from crispseg.evaluate.worst import WorstWindow
from crispseg.files import replacing, write_text
from crispseg.models.base import SegmentationModel
from crispseg.models.folder import CARD, WEIGHTS, load, save
from crispseg.predict.segment import segment
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
    parser.add_argument(
        "--resolutions", type=float, nargs=2, metavar="M", help="the finest and coarsest pixels it is for"
    )
    parser.add_argument("--buildings", type=Path, metavar="FOLDER", help="also score `building` alone on this data")
    parser.add_argument("--strangers", default="", help="a paragraph for the card: what strangers.py found")
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
    model = opened.model
    facts = facts_of(_trained_on(opened, folder))
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
        licence=f"weights Apache-2.0; trained on open data ({facts.licence})",
        palette=class_colours(model.info.classes),
        resolutions=tuple(args.resolutions) if args.resolutions else model.info.resolutions,
        scores=_kept_scores(scored),
        notes=facts.limits,
    )
    failures = worst_of_each(scored.worst, FAILURES)
    scored_elsewhere = _score_buildings(model, args.buildings) if args.buildings else ""
    elsewhere = "\n\n".join(filter(None, (scored_elsewhere, args.strangers)))
    shipment = Shipment(args.name, model, opened.run, args.weights, facts, full, scored, failures, args.note, elsewhere)
    return _write(shipment, args.out / args.name)


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


def _score_buildings(model: SegmentationModel, data: Path) -> str:
    """How `building` does on a set that knows buildings only, at three sizes of its pixels."""
    lines = [f"IoU of `building` on the validation images of {data.name}:", ""]
    scores = dict(model.info.scores)
    for scale in (1.0, 0.5, 0.25):
        iou = building_iou(model, open_folder(data), scale)
        lines.append(f"- seen at {scale:g} of their size: {100 * iou:.1f}")
        scores[f"IoU building, {data.name} x {scale:g}"] = iou
    model.info = dataclasses.replace(model.info, scores=scores)
    return "\n".join(lines)


def building_iou(model: SegmentationModel, folder: Folder, scale: float) -> float:
    """Images are shown `scale` times as large; the map is compared at their own size."""
    ours, theirs = model.info.classes.index("building"), folder.protocol.classes.index("building")
    both, either = 0, 0
    for record in folder.records("val"):
        image, mask = folder.read_image(record), folder.read_mask(record)
        size = (max(32, round(image.shape[1] * scale)), max(32, round(image.shape[0] * scale)))
        shown = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BOX if scale < 1 else None))
        found = Image.fromarray((segment(shown, model, tile=min(512, max(size))) == ours).astype(np.uint8))
        there = np.asarray(found.resize((image.shape[1], image.shape[0]), Image.Resampling.NEAREST)) > 0
        truth, valid = mask == theirs, mask != 255
        both += int((there & truth & valid).sum())
        either += int(((there | truth) & valid).sum())
    return both / max(either, 1)


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
    info = shipment.model.info
    with replacing(target) as aside:
        save(shipment.model, aside, half=True)
        for number, window in enumerate(shipment.failures, 1):
            picture = draw_worst(window, info.classes, info.palette)
            picture.save(aside / shipment.picture(number), "jpeg", quality=82, subsampling=0, optimize=True)
        write_text(aside / CARD, card(shipment))
        shutil.rmtree(target, ignore_errors=True)
    return target


if __name__ == "__main__":
    sys.exit(main())
