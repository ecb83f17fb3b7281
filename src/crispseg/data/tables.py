"""Finding a folder's class table: given, in a file, known by name, or worked out from its index masks."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from crispseg.data import known
from crispseg.data.classes import IGNORE, MAX_CLASSES, ClassTable, read_class_table, table_from_rows
from crispseg.data.images import read_mask, read_nodata, read_palette
from crispseg.data.labels import check_whole, pack, unpack
from crispseg.data.manifest import MANIFEST, read_manifest
from crispseg.errors import UserError

_FILES = ("classes.csv", "classes.yaml", "classes.yml")
Classes = ClassTable | str | Path  # a table, the name of a known set, or a file


def find_table(root: Path, masks: Sequence[Path], classes: Classes | None = None, dataset: str = "") -> ClassTable:
    """The table of `root`: `classes`, else its classes.csv, classes.yaml or dataset.json, else that of the known
    `dataset`, else what the masks tell."""
    if isinstance(classes, ClassTable):
        return classes
    if classes is not None:
        return known.TABLES[str(classes)] if str(classes) in known.TABLES else read_class_table(classes)
    for name in _FILES:
        if (root / name).exists():
            return read_class_table(root / name)
    manifest = read_manifest(root)
    if "classes" in manifest:
        return table_from_rows(manifest["classes"], str(root / MANIFEST))
    return known.TABLES[dataset] if dataset in known.TABLES else infer_table(root, masks)


def has_table(root: Path, classes: Classes | None = None) -> bool:
    """Whether somebody has said what the classes are."""
    return classes is not None or any((root / name).exists() for name in (*_FILES, MANIFEST))


def infer_table(root: Path, masks: Sequence[Path]) -> ClassTable:
    """A class for each id in the masks, which must be 0, 1, 2, ... or 1, 2, 3, ... without gaps; 255 is ignored."""
    if not masks:
        raise UserError(f"{root} has no masks to tell the classes from")
    found = _count_values(root, masks)
    ids = sorted(value for value in found if value != IGNORE)
    if not ids or ids == [0]:
        raise UserError(
            f"the masks of {root} hold only {' and '.join(map(str, sorted(found)))}; 255 means ignored here. For a "
            f"mask of something and nothing write {root / 'classes.csv'}:\nname,id\nnothing,0\nsomething,255"
        )
    if ids[0] not in (0, 1) or ids[-1] - ids[0] >= len(ids) or len(ids) > MAX_CLASSES:
        raise _ask_for_ids(root, found)
    empty = {nodata for path in masks if (nodata := read_nodata(path)) in ids}
    if empty:
        rows = "\n".join(f"class_{value},{value},{'1' if value in empty else ''}" for value in ids)
        raise UserError(
            f"the masks of {root} hold {' and '.join(f'{value:g}' for value in sorted(empty))}, which their files call "
            f"no data; write {root / 'classes.csv'}, with 1 in the last column if nothing is to be learnt there, and "
            f"nothing if it is a class:\nname,id,ignore\n{rows}"
        )
    return ClassTable(tuple(f"class_{i}" for i in ids), values=tuple(ids) if ids[0] else ())


@dataclasses.dataclass
class _Found:
    """A value of index masks: in how many pixels, and the first mask that has it."""

    pixels: int
    first: Path
    colour: tuple[int, ...] = ()  # in a palette


def _count_values(root: Path, masks: Sequence[Path]) -> dict[int, _Found]:
    """The values of index masks. A value that has one colour here and another there has no one meaning."""
    found: dict[int, _Found] = {}
    for path in masks:
        array = read_mask(path)
        array = array * np.uint8(255) if array.dtype == np.bool_ else array  # one bit; nobody has said what on means
        if array.ndim == 3:
            raise _ask_for_colours(root, masks)
        check_whole(array, str(path))
        palette = read_palette(path)
        for value, pixels in zip(*np.unique(array, return_counts=True), strict=True):
            own = found.setdefault(int(value), _Found(0, path))
            own.pixels += int(pixels)
            if palette is not None and value < len(palette):
                colour = tuple(palette[value].tolist())
                if own.colour not in ((), colour):
                    raise _ask_for_colours(root, masks, palettes=True)
                own.colour = colour
    return found


def _ask_for_ids(root: Path, found: dict[int, _Found]) -> UserError:
    """Ids with gaps: what is rare is more likely a slip of the pen than a class, so it is proposed to be ignored."""
    total = sum(each.pixels for each in found.values())
    few = max(1, total // 10_000)
    listed = sorted((value, each) for value, each in found.items() if value != IGNORE)
    seen = "\n".join(f"  {v}: {each.pixels} pixels, first in {each.first.name}" for v, each in listed[:_MOST_LISTED])
    rows = "\n".join(
        f"class_{v},{v}," if each.pixels > few else f"stray_{v},{v},1" for v, each in listed[:_MOST_LISTED]
    )
    more = f"\n  and {len(listed) - _MOST_LISTED} other values" if len(listed) > _MOST_LISTED else ""
    return UserError(
        f"the masks of {root} hold values that do not count 0, 1, 2, ...; without a class table they cannot be told "
        f"from mistakes. Values found:\n{seen}{more}\nWrite {root / 'classes.csv'} with a name for each class, and 1 "
        f"in the last column of what is to be ignored:\nname,id,ignore\n{rows}"
    )


_MOST_LISTED = 20


def count_colours(masks: Sequence[Path], at_most: int = 20) -> list[tuple[tuple[int, int, int], int]]:
    """The commonest colours of colour masks, with their pixels."""
    counts: Counter[int] = Counter()
    for path in masks:
        array = read_mask(path, colours=True)
        if array.ndim == 3 and array.dtype == np.uint8 and array.shape[2] >= 3:
            found, times = np.unique(pack(array[..., :3]), return_counts=True)
            counts.update(dict(zip(found.tolist(), times.tolist(), strict=True)))
    return [(unpack(packed), pixels) for packed, pixels in counts.most_common(at_most)]


def _ask_for_colours(root: Path, masks: Sequence[Path], palettes: bool = False) -> UserError:
    colours = count_colours(masks)
    seen = "\n".join(f"  {r},{g},{b}: {pixels} pixels" for (r, g, b), pixels in colours)
    rows = "\n".join(f"name_{i},{r},{g},{b}," for i, ((r, g, b), _) in enumerate(colours))
    why = "are palette pictures whose palettes differ" if palettes else "are colours"
    return UserError(
        f"the masks of {root} {why}, and there is no class table. Colours found:\n{seen}\n"
        f"Write {root / 'classes.csv'} with a name for each, and 1 in the last column of what is to be ignored:\n"
        f"name,r,g,b,ignore\n{rows}"
    )
