"""Make segmentation sets of UC Merced's pictures, whose own labels name a scene.

  python tools/scenes_as_labels.py data/ucmerced data/scenes
  python tools/scenes_as_labels.py data/ucmerced data/towns --masks labels/ucmerced

Without masks: woods, fields and shores, whose pixels can be few things. Every pixel of a picture gets the label of its
kind; what a kind can be is said where the set is used (`meaning` of data.also). A tenth of the pictures, by name, is
for validation. With masks: the pictures that were labelled pixel by pixel, under the masks' own classes and split.
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
    parser.add_argument("--masks", type=Path, help="a folder with masks/PICTURE.png, classes.csv and split.csv")
    args = parser.parse_args(argv)
    try:
        count = labelled(args.source, args.masks, args.out) if args.masks else kinds(args.source, args.out)
    except OSError as error:
        print(f"scenes_as_labels: {error}", file=sys.stderr)
        return 1
    print(f"{args.out}: {count} pictures")
    return 0 if count else 1


def labelled(source: Path, masks: Path, out: Path) -> int:
    images, target = _folders(out)
    paths = sorted((masks / "masks").glob("*.png"))
    for path in paths:
        picture = source / path.stem.rstrip("0123456789") / f"{path.stem}.jpg"
        shutil.copyfile(picture, images / picture.name)
        shutil.copyfile(path, target / path.name)
    for table in ("classes.csv", "split.csv"):
        shutil.copyfile(masks / table, out / table)
    return len(paths)


def kinds(source: Path, out: Path) -> int:
    images, target = _folders(out)
    rows = []
    for number, scenes in enumerate(KINDS.values()):
        for path in sorted(path for scene in scenes for path in (source / scene).glob("*.jpg")):
            with Image.open(path) as picture:
                size = picture.size
            shutil.copyfile(path, images / path.name)
            mask = np.full((size[1], size[0]), number, np.uint8)
            Image.fromarray(mask).save(target / f"{path.stem}.png", optimize=True)
            rows.append((path.stem, "val" if len(rows) % 10 == 9 else "train"))
    _write_csv(out / "split.csv", ("name", "split"), rows)
    _write_csv(out / "classes.csv", ("name", "id"), [(kind, number) for number, kind in enumerate(KINDS)])
    return len(rows)


def _folders(out: Path) -> tuple[Path, Path]:
    """For pictures and masks."""
    folders = out / "images", out / "masks"
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    return folders


def _write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([header, *rows])


if __name__ == "__main__":
    sys.exit(main())
