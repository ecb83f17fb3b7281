"""Makes the pictures of docs/gallery.md: images that were not trained on, and their maps laid over them.

    python tools/gallery.py --dubai DATA/dubai --out docs/images/gallery
    python tools/gallery.py --demo demo                 docs/images/demo.jpg, from what `crisp demo` left

The imagery is CC0 (Dubai); others can be added with their licence in docs/gallery.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import crispseg
from crispseg.data.drawing import outline, paint

HELD_OUT = ("tile1_part2", "tile1_part6", "tile1_part9", "tile3_part9")
SIDE = 760  # pixels of a panel's longer side


def panels(image: Image.Image, classes: np.ndarray, palette: tuple[tuple[int, int, int], ...]) -> Image.Image:
    """The image, and the image with the map laid over it."""
    scale = SIDE / max(image.size)
    size = (round(image.width * scale), round(image.height * scale))
    small = image.resize(size, Image.Resampling.LANCZOS)
    shrunk = np.asarray(Image.fromarray(classes).resize(size, Image.Resampling.NEAREST))
    painted = Image.fromarray(outline(paint(shrunk, palette), shrunk))
    sheet = Image.new("RGB", (2 * size[0] + 8, size[1]), "white")
    sheet.paste(small, (0, 0))
    sheet.paste(Image.blend(small, painted, 0.55), (size[0] + 8, 0))
    return sheet


def legend(model: crispseg.models.base.SegmentationModel) -> Image.Image:
    picture = Image.new("RGB", (150 * len(model.info.classes), 28), "white")
    draw = ImageDraw.Draw(picture)
    for i, (name, colour) in enumerate(zip(model.info.classes, model.info.palette, strict=True)):
        draw.rectangle((150 * i + 4, 6, 150 * i + 24, 22), fill=colour, outline="black")
        draw.text((150 * i + 32, 7), name, fill="black", font_size=14)
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--dubai", type=Path, help="the folder with images/tile1_part2.jpg and so on")
    what.add_argument("--demo", type=Path, help="the folder of `crisp demo`: only its picture is made")
    parser.add_argument("--model", default="crisp_nano_aerial")
    parser.add_argument("--out", type=Path, default=Path("docs/images/gallery"))
    args = parser.parse_args()
    if args.demo:
        with Image.open(args.demo / "side_by_side.png") as picture:
            picture.save(args.out.parent / "demo.jpg", quality=82, subsampling=0, optimize=True)
        return
    model = crispseg.load(args.model)
    args.out.mkdir(parents=True, exist_ok=True)
    legend(model).save(args.out / "legend.png", optimize=True)
    for name in HELD_OUT:
        with Image.open(args.dubai / "images" / f"{name}.jpg") as opened:
            image = opened.convert("RGB")
        sheet = panels(image, crispseg.segment(image, model), model.info.palette)
        sheet.save(args.out / f"dubai-{name}.jpg", quality=82)


if __name__ == "__main__":
    main()
