"""The report's pictures, drawn with pillow: confusion matrix, reliability curve, worst windows."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from crispseg.data.classes import IGNORE, Colour
from crispseg.data.drawing import outline, paint, to_rgb, unlabelled_colour, wrong_colour
from crispseg.evaluate.worst import WorstWindow
from crispseg.metrics import Reliability
from crispseg.metrics.words import percent

if TYPE_CHECKING:
    from PIL import Image, ImageDraw, ImageFont

    from crispseg.evaluate.places import Change

_INK, _FAINT, _BLUE = (34, 34, 34), (200, 200, 200), (31, 90, 165)
_ONLY_A, _ONLY_B, _BOTH_WRONG = (214, 94, 0), (0, 114, 178), (90, 90, 90)  # told apart by colour-blind eyes, too
_DOUBLE = 2  # curves are drawn twice as large and shrunk, which smooths their lines
_SMALLEST_PANEL = 256  # smaller windows are enlarged by a whole factor


def draw_confusion(counts: NDArray[np.int64], names: Sequence[str]) -> Image.Image:
    """Rows are true classes; a cell is the share of its row, in percent, and so dark."""
    from PIL import Image, ImageDraw

    cell = max(14, min(76, 900 // len(names)))
    font = load_font(max(9, min(16, cell // 3)))
    label = load_font(16) if cell >= 20 else font
    margin = 24 + max(int(label.getlength(name)) for name in names)
    side = margin + cell * len(names) + 12
    caption, small = "row: true class, column: predicted; percent of the row", load_font(13)
    picture = Image.new("RGB", (max(side, int(small.getlength(caption)) + 24), side + 28), "white")
    draw = ImageDraw.Draw(picture)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    for row, column in np.ndindex(*shares.shape):
        left, top = margin + column * cell, margin + row * cell
        share = float(shares[row, column])
        colour = tuple(round(255 + (blue - 255) * share**0.6) for blue in _BLUE)
        draw.rectangle((left, top, left + cell - 2, top + cell - 2), fill=colour)
        if cell >= 34 and counts[row].sum():
            ink = "white" if share > 0.4 else _INK
            draw.text((left + cell / 2 - 1, top + cell / 2 - 1), f"{100 * share:.1f}", ink, font, anchor="mm")
    for i, name in enumerate(names):
        middle = margin + i * cell + cell / 2
        draw.text((margin - 10, middle), name, _INK, label, anchor="rm")
        _upright_text(picture, name, (middle, margin - 10), label)
    left = min(margin, picture.width - int(small.getlength(caption)) - 12)
    draw.text((left, side + 4), caption, (110, 110, 110), small)
    return picture


def _upright_text(picture: Image.Image, text: str, foot: tuple[float, float], font: ImageFont.FreeTypeFont) -> None:
    """Text that reads upwards from `foot`."""
    from PIL import Image, ImageDraw

    size = (int(font.getlength(text)) + 2, sum(font.getmetrics()))
    strip = Image.new("RGB", size, "white")
    ImageDraw.Draw(strip).text((0, 0), text, _INK, font)
    turned = strip.rotate(90, expand=True)
    picture.paste(turned, (round(foot[0] - turned.width / 2), round(foot[1] - turned.height)))


def draw_reliability(curve: Reliability) -> Image.Image:
    """Share of right pixels against confidence, and below it how many pixels each bin holds."""
    from PIL import Image, ImageDraw

    k = _DOUBLE
    side, left, top, low = 400 * k, 64 * k, 16 * k, 90 * k
    picture = Image.new("RGB", (left + side + 24 * k, top + side + low + 84 * k), "white")
    draw = ImageDraw.Draw(picture)
    font = load_font(14 * k)

    def at(x: float, y: float) -> tuple[float, float]:
        return left + x * side, top + (1 - y) * side

    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        draw.line((at(tick, 0), at(tick, 1)), _FAINT, k)
        draw.line((at(0, tick), at(1, tick)), _FAINT, k)
        draw.text((left - 8 * k, at(0, tick)[1]), f"{tick:g}", _INK, font, anchor="rm")
    draw.line((at(0, 0), at(1, 1)), _INK, k)
    filled = [i for i in range(len(curve.count)) if curve.count[i]]
    points = [at(float(curve.confidence[i]), float(curve.accuracy[i])) for i in filled]
    if points:
        draw.line(points, _BLUE, 3 * k, joint="curve")
    for x, y in points:
        draw.ellipse((x - 4 * k, y - 4 * k, x + 4 * k, y + 4 * k), fill=_BLUE)
    draw.text(at(0.03, 0.95), f"ECE {percent(curve.ece)} %", _INK, font, anchor="lm")
    _draw_shares(draw, curve, left, top + side + 30 * k, side, low)
    return picture.resize((picture.width // k, picture.height // k), Image.Resampling.LANCZOS)


def _draw_shares(draw: ImageDraw.ImageDraw, curve: Reliability, left: int, top: int, side: int, height: int) -> None:
    k, font = _DOUBLE, load_font(14 * _DOUBLE)
    shares = curve.count / max(int(curve.count.sum()), 1)
    highest = max(float(shares.max()), 1e-9)
    for i, share in enumerate(shares):
        first, last = left + float(curve.edges[i]) * side, left + float(curve.edges[i + 1]) * side
        bar = height * float(share) / highest
        draw.rectangle((first + k, top + height - bar, last - k, top + height), fill=(150, 180, 215))
    draw.line((left, top + height, left + side, top + height), _INK, k)
    draw.text((left - 8 * k, top), f"{100 * highest:.0f} %", _INK, font, anchor="rm")
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        draw.text((left + tick * side, top + height + 14 * k), f"{tick:g}", _INK, font, anchor="mm")
    draw.text(
        (left + side / 2, top + height + 36 * k),
        "by confidence: share right (curve), share of pixels (bars)",
        _INK,
        font,
        anchor="mm",
    )


def draw_worst(
    window: WorstWindow, names: Sequence[str], palette: tuple[Colour, ...], who: str = "prediction"
) -> Image.Image:
    """Image and truth above, prediction and error below; the colours of the classes that occur."""
    from PIL import Image, ImageDraw

    wrong, unlabelled = mark_colours(palette)
    titles = ("image", "truth", who, f"error: {100 * window.share:.1f} % wrong")
    panels = dict(zip(titles, window_panels(window, palette).values(), strict=True))
    width, height = panels["image"].size
    title, gap = 24, 8
    seen = [i for i in np.union1d(window.truth, window.prediction) if i < len(names)]
    colours = [*(palette[i] for i in seen), wrong, unlabelled]
    legend = draw_legend([*(names[i] for i in seen), "wrong", "not labelled"], colours, 2 * width + gap)
    below = 2 * (height + title)
    picture = Image.new("RGB", (legend.width, below + legend.height), "white")
    picture.paste(legend, (0, below))
    draw = ImageDraw.Draw(picture)
    for number, (text, panel) in enumerate(panels.items()):
        left, top = number % 2 * (width + gap), number // 2 * (height + title)
        draw.text((left + 2, top + title / 2), text, _INK, load_font(15), anchor="lm")
        picture.paste(panel, (left, top + title))
    return picture


def mark_colours(palette: tuple[Colour, ...]) -> tuple[Colour, Colour]:
    """Of what is wrong, and of what is not labelled."""
    wrong = wrong_colour(palette)
    return wrong, unlabelled_colour((*palette, wrong))


def window_panels(window: WorstWindow, palette: tuple[Colour, ...]) -> dict[str, Image.Image]:
    """Image, truth, prediction and errors of a window, each a picture by itself."""
    image, (wrong, unlabelled) = to_rgb(window.image), mark_colours(palette)
    errors = pale(image)
    errors[window.truth != window.prediction] = wrong
    errors[window.truth == IGNORE] = unlabelled
    return {
        "image": enlarged(image),
        "truth": draw_classes(window.truth, palette, unlabelled),
        "prediction": draw_classes(window.prediction, palette, unlabelled),
        "errors": enlarged(errors),
    }


def draw_classes(ids: NDArray[np.uint8], palette: tuple[Colour, ...], unlabelled: Colour) -> Image.Image:
    """Classes in their colours with outlines a pixel wide, also of a small window that is enlarged."""
    from PIL import Image

    large = np.asarray(enlarged(ids))
    return Image.fromarray(outline(paint(large, palette, unlabelled), large))


def enlarged(pixels: NDArray[np.uint8]) -> Image.Image:
    """A small window by a whole factor, so that its pixels stay squares."""
    from PIL import Image

    height, width = pixels.shape[:2]
    factor = max(1, -(-_SMALLEST_PANEL // max(height, width)))
    return Image.fromarray(pixels).resize((width * factor, height * factor), Image.Resampling.NEAREST)


def change_panels(change: Change, palette: tuple[Colour, ...]) -> dict[str, Image.Image]:
    """Image, truth, both maps, and who is right where they differ."""
    a, b = change.a, change.b
    image = to_rgb(a.image)
    who = pale(image)
    labels = a.truth != IGNORE
    right_a, right_b = a.prediction == a.truth, b.prediction == a.truth
    who[labels & ~right_a & ~right_b] = _BOTH_WRONG
    who[labels & right_b & ~right_a] = _ONLY_B
    who[labels & right_a & ~right_b] = _ONLY_A
    who[~labels] = unlabelled = unlabelled_colour((*palette, _ONLY_A, _ONLY_B, _BOTH_WRONG))
    painted = {"truth": a.truth, "A": a.prediction, "B": b.prediction}
    panels = {name: draw_classes(ids, palette, unlabelled) for name, ids in painted.items()}
    return {"image": enlarged(image), **panels, "who is right": enlarged(who)}


def id_picture(ids: NDArray[np.uint8], names: Sequence[str], palette: Sequence[Colour]) -> bytes:
    """A PNG of class ids with their colours, that says their names as our maps do: crisp view and QGIS open it."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    picture = Image.fromarray(ids)
    table = bytes(channel for colour in palette for channel in colour)
    picture.putpalette(table + bytes(768 - len(table)))
    about = PngInfo()
    about.add_text("CLASSES", json.dumps(dict(enumerate(names))))
    opaque = bytes(255 if k < len(palette) else 0 for k in range(256))
    buffer = io.BytesIO()
    picture.save(buffer, "png", pnginfo=about, transparency=opaque, optimize=True)
    return buffer.getvalue()


def pale(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The image in light grey, so that colours upon it stand out."""
    grey = image.mean(axis=2, keepdims=True).repeat(3, axis=2)
    return (150 + 0.4 * grey).astype(np.uint8)


def draw_legend(names: Sequence[str], palette: Sequence[Colour], width: int) -> Image.Image:
    """Names with their colours, in as many lines as it takes."""
    from PIL import Image, ImageDraw

    font, row = load_font(14), 24
    places, x, y = [], 4, 6
    for name in names:
        needed = 40 + int(font.getlength(name))
        if x + needed > width and x > 4:
            x, y = 4, y + row
        places.append((x, y))
        x += needed
    picture = Image.new("RGB", (width, y + row), "white")
    draw = ImageDraw.Draw(picture)
    for name, colour, (left, top) in zip(names, palette, places, strict=True):
        draw.rectangle((left, top, left + 16, top + 16), fill=colour, outline=_INK)
        draw.text((left + 24, top + 8), name, _INK, font, anchor="lm")
    return picture


def wrapped(text: str, font: ImageFont.FreeTypeFont, width: float) -> list[str]:
    """The text in lines that are no wider, as far as its words allow."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and font.getlength(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def load_font(size: int) -> ImageFont.FreeTypeFont:
    from PIL import ImageFont

    # pillow's wheels bring a font; without FreeType there would be a bitmap that knows no size
    return cast("ImageFont.FreeTypeFont", ImageFont.load_default(size))
