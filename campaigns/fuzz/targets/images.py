"""Images and masks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from campaigns.fuzz.targets.base import Target
from campaigns.fuzz.targets.pictures import COLOURS, save, save_colours, save_palette, write


def targets() -> list[Target]:
    from crispseg.data.classes import ClassTable
    from crispseg.data.images import read_header, read_image, read_mask
    from crispseg.data.labels import encode

    ids = ClassTable(("a", "b", "c"))
    coloured = ClassTable(("a", "b", "c"), COLOURS)

    def read(folder: Path) -> None:
        for path in sorted(folder.iterdir()):
            read_header(path)
            read_image(path)
            read_header(path.read_bytes(), path.name)

    def read_masks(folder: Path) -> None:
        for path in sorted(folder.iterdir()):
            table = coloured if path.name.startswith("colours") else ids
            encode(read_mask(path), table, path.name, unknown="ignore", tolerance=3)

    def each(name: str, make: Callable[[Path], None], reader: Callable[[Path], object] = read) -> Target:
        return Target(name, lambda folder: make(folder / name), (name,), reader)

    return [
        each("rgb.png", lambda p: save(p, "uint8", 3)),
        each("palette.png", save_palette),
        each("deep.png", lambda p: write(p, "uint16", 3, driver="PNG")),
        each("photo.jpg", lambda p: save(p, "uint8", 3)),
        each("plain.tif", lambda p: save(p, "uint8", 3)),
        each("bands.tif", lambda p: write(p, "uint16", 5)),
        each("float.tif", lambda p: write(p, "float32", 2, compress="deflate")),
        each("colours.png", save_colours, read_masks),
        each("mask.png", lambda p: save(p, "uint8", 1), read_masks),
        each("mask.tif", lambda p: write(p, "float32", 1), read_masks),
    ]
