"""Pictures of single images, drawn with pillow: errors, allocation of prototypes, activation."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crispseg.analysis.result import AGAINST, AS_TRAINED, Look, Map
from crispseg.data.classes import IGNORE, Colour
from crispseg.data.drawing import paint, unlabelled_colour
from crispseg.evaluate.pictures import draw_legend, load_font, pale, wrapped

if TYPE_CHECKING:
    from PIL import Image

Panel = NDArray[np.uint8]  # (H, W, 3)
_INK = (34, 34, 34)
_INSIDE, _IN_BAND = (214, 20, 40), (255, 150, 0)
_OTHER, _OWN, _BOTH = (20, 130, 60), (150, 40, 170), (70, 70, 70)
_SIDE = 420  # of a panel, about: larger ones are shrunk, much smaller ones enlarged by a whole factor
# dark to light through blue, green and yellow: reads alike in grey and for the colour-blind
_HEAT = np.array([(20, 10, 60), (45, 60, 140), (30, 130, 140), (90, 190, 90), (250, 230, 60)], np.float64)


def draw_errors(look: Look, classes: Sequence[str], palette: tuple[Colour, ...]) -> Image.Image:
    """Image, truth, prediction, errors and what they were taken for; the same of `against`, and who is wrong where."""
    own, other = look.predictions[AS_TRAINED], look.predictions.get(AGAINST)
    blank = unlabelled_colour((*palette, _INSIDE, _IN_BAND, _OTHER, _OWN, _BOTH))
    panels = {"image": look.image, "truth": paint(look.truth, palette, blank)}
    colours = {"wrong, interior": _INSIDE, "wrong, near a boundary": _IN_BAND, "not labelled": blank}
    if other is not None:
        panels["who is wrong"] = wrong_where(look, own, other, blank)
        colours |= {"only against is wrong": _OTHER, "only this model is wrong": _OWN, "both are wrong": _BOTH}
    panels |= _judged(look, own, palette, blank, "")
    if other is not None:
        panels |= _judged(look, other, palette, blank, "against: ")
    seen = np.unique([look.truth, *look.predictions.values()])
    return grid(panels, 3, {classes[i]: palette[i] for i in seen if i < len(classes)} | colours)


def _judged(
    look: Look, predicted: NDArray[np.uint8], palette: tuple[Colour, ...], blank: Colour, who: str
) -> dict[str, Panel]:
    labelled = look.truth != IGNORE
    wrong = (predicted != look.truth) & labelled
    share = wrong.sum() / max(int(labelled.sum()), 1)
    errors, taken = pale(look.image), pale(look.image)
    errors[wrong & ~look.band] = _INSIDE
    errors[wrong & look.band] = _IN_BAND
    taken[wrong] = paint(predicted, palette)[wrong]
    errors[~labelled] = taken[~labelled] = blank
    return {
        f"{who}prediction": paint(predicted, palette),
        f"{who}errors, {100 * share:.1f} %": errors,
        f"{who}wrong pixels: taken for": taken,
    }


def wrong_where(look: Look, own: NDArray[np.uint8], other: NDArray[np.uint8], blank: Colour = (0, 0, 0)) -> Panel:
    labelled = look.truth != IGNORE
    own_wrong, other_wrong = ((each != look.truth) & labelled for each in (own, other))
    panel = pale(look.image)
    panel[own_wrong & other_wrong] = _BOTH
    panel[other_wrong & ~own_wrong] = _OTHER
    panel[own_wrong & ~other_wrong] = _OWN
    panel[~labelled] = blank
    return panel


def draw_allocation(look: Look, classes: Sequence[str], palette: tuple[Colour, ...]) -> Image.Image:
    """Image, prediction, and for every pixel the prototype that won it: a hue per predicted class, a shade each."""
    assert look.won is not None and look.cosines is not None
    predicted, count = look.predictions[AS_TRAINED], look.cosines.shape[1]
    table = shades(len(classes), count)
    winners = np.unique(predicted.astype(np.int64) * count + look.won)
    named: dict[str, Colour] = {}
    for c, k in (divmod(int(winner), count) for winner in winners):
        red, green, blue = table[c, k].tolist()
        named[f"{classes[c]} {k + 1}"] = (red, green, blue)
    panels = {
        "image": look.image,
        "prediction": paint(predicted, palette),
        "winning prototype of the predicted class": table[predicted, look.won],
    }
    return grid(panels, 3, named)


def shades(classes: int, count: int) -> Panel:
    """(classes, count, 3) colours: hues far apart for classes (a palette's may be near), dark to light within one."""
    levels = np.linspace(0.25, 0.8, count) if count > 1 else np.array([0.5])
    made = [[colorsys.hls_to_rgb(c / classes, level, 0.75) for level in levels] for c in range(classes)]
    return (255 * np.array(made)).round().astype(np.uint8)


def draw_activation(look: Look, classes: Sequence[str], focus: int | None) -> Image.Image:
    """The best cosine of each class, and each prototype's of one class (`focus`, or the most predicted one)."""
    assert look.cosines is not None
    if focus is None:
        focus = int(np.bincount(look.predictions[AS_TRAINED].ravel()).argmax())
    low, high = float(look.cosines.max(1).min()), float(look.cosines.max())
    panels: dict[str, Panel] = {"image": look.image}
    panels |= {f"{name}: best": heat(look.cosines[i].max(0), low, high) for i, name in enumerate(classes)}
    if look.cosines.shape[1] > 1:
        panels |= {f"{classes[focus]}: {k + 1}": heat(m, low, high) for k, m in enumerate(look.cosines[focus])}
    return grid(panels, 4, _scale("cosine", low, high), look.truth.shape)


def draw_activity(look: Look) -> Image.Image:
    """How strongly the mixer of each stage's last block answers: a row per variant, a column per stage."""
    columns = max(map(len, look.activity.values()))
    panels: dict[str, Panel] = {}
    for label, maps in look.activity.items():
        for block, map_ in maps.items():
            # one scale for all variants of a block, or the change would not be seen
            low, high = _common(look.activity, block)
            panels[f"{label}: {block}"] = heat(map_, low, high)
    return grid(panels, columns, _scale("distance from the mean", None, None), look.truth.shape)


def _common(activity: Mapping[str, Mapping[str, Map]], block: str) -> tuple[float, float]:
    values = np.concatenate([maps[block].ravel() for maps in activity.values() if block in maps])
    return float(np.percentile(values, 1)), float(np.percentile(values, 99))


def _scale(what: str, low: float | None, high: float | None) -> dict[str, Colour]:
    first, last = (f"{what} {low:.2f} or less", f"{high:.2f}") if low is not None else (f"{what}: small", "large")
    ends = [tuple(round(part) for part in colour) for colour in (_HEAT[0], _HEAT[-1])]
    return {first: ends[0], last: ends[1]}


def heat(values: Map, low: float, high: float) -> Panel:
    """(h, w) numbers as colours from dark (`low`) to light (`high`)."""
    place = np.clip((values - low) / max(high - low, 1e-12), 0, 1) * (len(_HEAT) - 1)
    steps = np.arange(len(_HEAT))
    return np.stack([np.interp(place, steps, _HEAT[:, i]) for i in range(3)], -1).round().astype(np.uint8)


def grid(
    panels: Mapping[str, Panel], columns: int, colours: Mapping[str, Colour], size: tuple[int, ...] | None = None
) -> Image.Image:
    """Titled panels in rows, all brought to one size (that of the first, or `size`), above a legend."""
    from PIL import Image, ImageDraw

    height, width = size or next(iter(panels.values())).shape[:2]
    factor = min(1.0, _SIDE / max(height, width)) if max(height, width) > _SIDE // 2 else _SIDE // max(height, width)
    height, width = max(1, round(height * factor)), max(1, round(width * factor))
    columns = min(columns, len(panels))
    font, gap = load_font(14), 8
    titles = {text: wrapped(text, font, width - 4) for text in panels}
    title = 6 + 18 * max(map(len, titles.values()))
    rows = -(-len(panels) // columns)
    below = rows * (height + title)
    key = draw_legend(list(colours), list(colours.values()), columns * (width + gap) - gap)
    picture = Image.new("RGB", (key.width, below + key.height), "white")
    picture.paste(key, (0, below))
    draw = ImageDraw.Draw(picture)
    for number, (text, panel) in enumerate(panels.items()):
        left, top = number % columns * (width + gap), number // columns * (height + title)
        for line, words in enumerate(reversed(titles[text])):  # a short title stands beside its picture
            draw.text((left + 2, top + title - 12 - 18 * line), words, _INK, font, anchor="lm")
        # averaging when shrinking keeps thin errors visible; enlarging shows pixels as they are
        kind = Image.Resampling.BOX if panel.shape[0] > height else Image.Resampling.NEAREST
        picture.paste(Image.fromarray(panel).resize((width, height), kind), (left, top + title))
    return picture
