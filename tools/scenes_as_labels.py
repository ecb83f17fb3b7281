"""Make a segmentation set of scene classes whose pixels can be few things: woods, fields and shores of UC Merced.

  python tools/scenes_as_labels.py data/ucmerced data/scenes

Every pixel of a picture gets the label of its kind; what a kind can be is said where the set is used (`meaning` of
data.also). A tenth of the pictures, by name, is for validation.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

KINDS = {
    "wood": ("forest",),
    "field": ("agricultural", "baseballdiamond", "chaparral", "golfcourse"),
    "shore": ("beach",),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folders CLASS/PICTURE.jpg")
    parser.add_argument("out", type=Path)
    args = parser.parse_args(argv)
    for folder in ("images", "masks"):
        (args.out / folder).mkdir(parents=True, exist_ok=True)
    rows = []
    for number, scenes in enumerate(KINDS.values()):
        for path in sorted(path for scene in scenes for path in (args.source / scene).glob("*.jpg")):
            with Image.open(path) as picture:
                size = picture.size
            shutil.copyfile(path, args.out / "images" / path.name)
            mask = np.full((size[1], size[0]), number, np.uint8)
            Image.fromarray(mask).save(args.out / "masks" / f"{path.stem}.png", optimize=True)
            rows.append((path.stem, "val" if len(rows) % 10 == 9 else "train"))
    write_csv(args.out / "split.csv", ("name", "split"), rows)
    write_csv(args.out / "classes.csv", ("name", "id"), [(kind, number) for number, kind in enumerate(KINDS)])
    print(f"{args.out}: {len(rows)} pictures")
    return 0 if rows else 1


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


if __name__ == "__main__":
    sys.exit(main())
