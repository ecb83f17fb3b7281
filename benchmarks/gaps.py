"""What an empty margin around a scene costs: maps of cut-outs with and without one, shown to the model in two ways.

  PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/gaps.py --data DATA/dubai --margin 100

`mirrored` is what `crisp predict` does: ground without data is shown as the scene mirrored. `even` fills it with the
bands' means, as it was once.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from record import measure_and_record

import crispseg
from crispseg.data.folder import open_folder
from crispseg.metrics import ConfusionMatrix
from crispseg.models.base import SegmentationModel

RESULTS = Path(__file__).parent / "results" / "gaps.json"
NOTES = """mIoU on the middle of each validation image, by `crispseg.segment` in float32: of the cut-out alone, and of
the same pixels with a margin without data around them, which is shown to the model mirrored, as `crisp predict` does,
or in the bands' means."""
WAYS = ("alone", "mirrored", "even")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--protocol", default="dubai/own5")
    parser.add_argument("--model", default="crisp_nano_aerial")
    parser.add_argument("--side", type=int, default=480, help="of a cut-out")
    parser.add_argument("--margin", type=int, default=100, help="pixels without data on each side")
    measure_and_record(parser, measure, RESULTS, "Empty margins", NOTES)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    model = crispseg.load(args.model)
    folder = open_folder(args.data, protocol=args.protocol)
    matrices = {way: ConfusionMatrix(len(model.info.classes)) for way in WAYS}
    records = folder.records("val")
    for record in records:
        cut = middle(folder.read_image(record), args.side)
        truth = middle(folder.read_mask(record), args.side)
        for way, matrix in matrices.items():
            matrix.update(mapped(cut, model, way, args.margin), truth)
    return {
        "model": args.model,
        "protocol": args.protocol,
        "cut-outs": f"{len(records)} of {args.side} px",
        "margin, px": args.margin,
        **{way: round(100 * matrix.scores().to_dict()["mIoU"], 1) for way, matrix in matrices.items()},
        "command": f"python benchmarks/gaps.py --data DATA/dubai --margin {args.margin}",
    }


def middle(pixels: NDArray[Any], side: int) -> NDArray[Any]:
    top, left = ((length - side) // 2 for length in pixels.shape[:2])
    return pixels[top : top + side, left : left + side]


def mapped(cut: NDArray[np.uint8], model: SegmentationModel, way: str, margin: int) -> NDArray[np.uint8]:
    """The cut-out's class ids."""
    if way == "alone":
        return crispseg.segment(cut, model, precision="float32")
    around = ((margin, margin), (margin, margin), (0, 0))
    filled = np.pad(cut, around)
    empty = np.pad(np.zeros(cut.shape, bool), around, constant_values=True)
    filled[empty.any(-1)] = np.round(model.info.mean)
    scene = np.ma.masked_array(filled, empty) if way == "mirrored" else filled
    found = crispseg.segment(scene, model, precision="float32")
    return found[margin : margin + len(cut), margin : margin + cut.shape[1]]


if __name__ == "__main__":
    main()
