"""Store a pretrained backbone in fewer bits, as a folder of its own.

  python tools/store_backbone.py RUN/backbone OUT --storage half
  python tools/store_backbone.py RUN/backbone src/crispseg/shipped/backbones/vssd_tiny --storage int8 --recipe "..." \
    --licence "..." --notes "..."
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from crispseg.errors import UserError
from crispseg.models.backbone_folder import WEIGHTS, load_backbone, read_backbone, save_backbone
from crispseg.models.pretrained import find_pretrained


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a backbone's folder or name, or a pretraining run")
    parser.add_argument("out", type=Path)
    parser.add_argument("--storage", choices=("full", "half", "int8"), default="half")
    for fact in ("training-data", "recipe", "licence", "notes"):
        parser.add_argument(f"--{fact}", help="for the card; else what the card says already")
    args = parser.parse_args(argv)
    try:
        source = find_pretrained(args.source)
        saved = read_backbone(source)
        told = {name: getattr(args, name) for name in ("training_data", "recipe", "licence", "notes")}
        info = dataclasses.replace(saved.info, **{name: value for name, value in told.items() if value})
        save_backbone(load_backbone(source), args.out, saved.name, info, args.storage)
    except UserError as error:
        print(f"store_backbone: {error}", file=sys.stderr)
        return 1
    print(f"{args.out}: {(args.out / WEIGHTS).stat().st_size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
