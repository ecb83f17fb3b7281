"""Put a model folder on the Hugging Face hub, from where `crispseg.load("hf:org/name")` fetches it.

  crisp push runs/city-crisp_nano-1 org/city --private
  crisp predict scene.tif -o map.tif -m hf:org/city

Sign in with `hf auth login` first. Only the folder's own files go up: config.json, model.safetensors, the card and its
pictures. Weights trained on data that may not be shared are yours to keep.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a saved model's folder, or a training run")
    parser.add_argument("name", metavar="ORG/NAME", help="what it is called on the hub")
    parser.add_argument("--private", action="store_true", help="only you may see it, if it is not there yet")
    parser.add_argument("--message", default="", help="of the commit")


def run(args: argparse.Namespace) -> int:
    from crispseg.cli.printer import Printer
    from crispseg.models import hub
    from crispseg.models.shipped import find_folder

    folder = find_folder(args.model)
    address = hub.push(folder, args.name, args.private, args.message)
    Printer.of(args).result({"address": address, "name": f"hf:{args.name}"}, f"{folder} -> {address}")
    return 0
