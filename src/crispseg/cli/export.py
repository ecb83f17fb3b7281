"""Write a model as a file for other programs: ONNX, or torch's .pt2. It is checked against the model first.

  crisp export MODEL -o model.onnx                             any size, for onnxruntime, OpenVINO and TensorRT
  crisp export MODEL -o qgis.onnx --deepness                   for the QGIS plug-in Deepness
  crisp export MODEL -o small.onnx --precision int8 --calibrate my_folder
  crisp export MODEL -o model.pt2 --size 512 512               torch.export; with --format aoti compiled ahead of time

The input is pixel values as they stand in the file, float32 (N, bands, H, W): normalisation is inside.
`crisp predict -m model.onnx`, `crisp eval model.onnx DATA` and `crisp bench model.onnx` run the file.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crispseg.cli.existing import add_existing

if TYPE_CHECKING:
    from crispseg.export.run import Exported


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="a saved model's folder, a training run, or a shipped model's name")
    add("-o", "--output-file", "--out", required=True, metavar="FILE", help="model.onnx or model.pt2")
    add("--format", choices=("onnx", "pt2", "aoti"), help="default: by the file's name; aoti compiles for this machine")
    add("--output", choices=("logits", "softmax", "argmax"), help="what it gives (default logits)")
    add("--precision", default="float32", choices=("float32", "float16", "int8"), help="(default %(default)s)")
    add("--size", type=int, nargs=2, metavar=("HEIGHT", "WIDTH"), help="for this size alone (default any)")
    add("--batch", type=int, metavar="N", help="for this many images at a time (default any)")
    add(
        "--deepness",
        action="store_true",
        help="as the QGIS plug-in wants it: probabilities, one square tile of 512 px",
    )
    add(
        "--calibrate",
        metavar="FOLDER",
        help="int8: images like those it will see; with masks/ its loss in mIoU is real",
    )
    add("--protocol", help="int8: of the folder, e.g. dubai/own5 (default its own)")
    add("--max-loss", type=float, default=5.0, metavar="POINTS", help="int8: mIoU it may lose (default %(default)g)")
    add_existing(parser, ("refuse", "replace"))


def run(args: argparse.Namespace) -> int:
    from crispseg.cli.printer import Printer
    from crispseg.evaluate.opening import open_model
    from crispseg.export.deepness import for_deepness
    from crispseg.export.run import export
    from crispseg.outputs import check_existing

    out = Printer.of(args)
    choice = _choice(args)
    check_existing([Path(args.output_file)], args.existing)
    model = open_model(args.model).model
    if args.deepness:
        choice = for_deepness(Path(args.output_file), choice, model.info)
    made = export(model, args.output_file, say=out.say, existing=args.existing, **choice)
    out.result(_values(made), _summary(made))
    return 0


def _choice(args: argparse.Namespace) -> dict[str, Any]:
    given: dict[str, Any] = {
        "format": args.format,
        "output": args.output,
        "precision": args.precision,
        "size": tuple(args.size) if args.size else None,
        "batch": args.batch,
        "calibrate": args.calibrate,
        "protocol": args.protocol,
        "max_loss": args.max_loss,
    }
    return {key: value for key, value in given.items() if value is not None}


def _values(made: Exported) -> dict[str, Any]:
    return {
        "file": made.path,
        "bytes": made.bytes,
        "seconds": made.seconds,
        "relative_error": made.error,
        "checks": [{"shape": check.shape, "relative_error": check.error} for check in made.checks],
        "loss": None if made.loss is None else made.loss._asdict() | {"points": made.loss.points},
    }


def _summary(made: Exported) -> str:
    tried = ", ".join("x".join(map(str, check.shape)) for check in made.checks)
    what = "share of pixels that differ" if made.choice.output == "argmax" else "relative error"
    before = "" if made.loss is None else ", before it was quantised,"
    lines = [
        f"{made.path}: {made.bytes / 2**20:.1f} MiB, {made.choice.precision}, {made.choice.output}, "
        f"made in {made.seconds:.0f} s",
        f"checked against the model{before} at {tried}: {what} {made.error:.1e}",
    ]
    return "\n".join([*lines, *([] if made.loss is None else [made.loss.sentence()])])
