"""Make a model folder of a checkpoint that a rival's authors published, to score or use it without training.

  crisp convert unetformer_r18 unetformer-r18.ckpt -o unetformer --protocol potsdam/geoseg6
  crisp convert d2ls_convnextb:layers=3 d2ls.ckpt -o d2ls --classes classes.csv
  crisp eval unetformer data/potsdam --protocol potsdam/geoseg6

The checkpoint does not hold its classes' names: the protocol or class table gives them, in the order of its numbers.
Pixels are 8 bits, normalised with ImageNet's mean and standard deviation, as all eight networks' authors do.
"""

from __future__ import annotations

import argparse

from crispseg.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the network, such as unetformer_r18 or NAME:option=value")
    parser.add_argument("file", metavar="FILE", help="the authors' checkpoint: .pth, .pt, .ckpt or .safetensors")
    parser.add_argument("-o", "--out", required=True, metavar="FOLDER", help="the model's folder, new or empty")
    parser.add_argument("--protocol", help="what it was trained for, e.g. potsdam/geoseg6")
    parser.add_argument("--classes", metavar="FILE", help="or its class table: a file, or a known set's name")


def run(args: argparse.Namespace) -> int:
    from crispseg.bench.specs import parse
    from crispseg.cli.printer import Printer
    from crispseg.evaluate.report import check_free
    from crispseg.train.convert import convert

    check_free(args.out)
    network, *more = parse([args.model])
    if more or network.folder:
        raise UserError(f"{args.model} is not one network; `crisp models` lists them")
    options = dict(network.options)
    model = convert(network.name, args.file, protocol=args.protocol, classes=args.classes, options=options)
    model.save(args.out)
    values = {"folder": args.out, "model": model.name, "classes": list(model.info.classes)}
    Printer.of(args).result(values, f"{args.file} -> {args.out}: {model.name}, {', '.join(model.info.classes)}")
    return 0
