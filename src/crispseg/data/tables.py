"""Finding a folder's class table: given, in a file, known by name, or worked out from its index masks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from crispseg.data import known
from crispseg.data.classes import IGNORE, MAX_CLASSES, ClassTable, read_class_table, table_from_rows
from crispseg.data.images import read_mask
from crispseg.data.labels import check_whole, pack, unpack
from crispseg.data.manifest import MANIFEST, read_manifest
from crispseg.errors import UserError

Classes = ClassTable | str | Path  # a table, the name of a known set, or a file


def find_table(root: Path, masks: Sequence[Path], classes: Classes | None = None, dataset: str = "") -> ClassTable:
    """The table of `root`: `classes`, else its classes.csv, classes.yaml or dataset.json, else that of the known
    `dataset`, else what the masks tell."""
    if isinstance(classes, ClassTable):
        return classes
    if classes is not None:
        return known.TABLES[str(classes)] if str(classes) in known.TABLES else read_class_table(classes)
    for name in ("classes.csv", "classes.yaml", "classes.yml"):
        if (root / name).exists():
            return read_class_table(root / name)
    manifest = read_manifest(root)
    if "classes" in manifest:
        return table_from_rows(manifest["classes"], str(root / MANIFEST))
    return known.TABLES[dataset] if dataset in known.TABLES else infer_table(root, masks)


def infer_table(root: Path, masks: Sequence[Path]) -> ClassTable:
    """class_0, class_1, ... up to the largest id in the masks; 255 is ignored."""
    if not masks:
        raise UserError(f"{root} has no masks to tell the classes from")
    values: set[int] = set()
    for path in masks:
        array = read_mask(path)
        if array.ndim == 3:
            raise _ask_for_colours(root, masks)
        check_whole(array, str(path))
        values.update(int(value) for value in np.unique(array))
    if values <= {0, IGNORE}:
        raise UserError(
            f"the masks of {root} hold only {_listed(values)}; 255 means ignored here. For a mask of something and "
            f"nothing write {root / 'classes.csv'}:\nname,id\nnothing,0\nsomething,255"
        )
    largest = max(values - {IGNORE})
    if min(values) < 0 or largest >= MAX_CLASSES:
        raise UserError(f"the masks of {root} hold ids from {min(values)} to {largest}; write {root / 'classes.csv'}")
    return ClassTable(tuple(f"class_{i}" for i in range(largest + 1)))


def _listed(values: set[int]) -> str:
    return " and ".join(map(str, sorted(values)))


def count_colours(masks: Sequence[Path], at_most: int = 20) -> list[tuple[tuple[int, int, int], int]]:
    """The commonest colours of colour masks, with their pixels."""
    counts: Counter[int] = Counter()
    for path in masks:
        array = read_mask(path)
        if array.ndim == 3 and array.dtype == np.uint8 and array.shape[2] >= 3:
            found, times = np.unique(pack(array[..., :3]), return_counts=True)
            counts.update(dict(zip(found.tolist(), times.tolist(), strict=True)))
    return [(unpack(packed), pixels) for packed, pixels in counts.most_common(at_most)]


def _ask_for_colours(root: Path, masks: Sequence[Path]) -> UserError:
    colours = count_colours(masks)
    seen = "\n".join(f"  {r},{g},{b}: {pixels} pixels" for (r, g, b), pixels in colours)
    rows = "\n".join(f"name_{i},{r},{g},{b}," for i, ((r, g, b), _) in enumerate(colours))
    lossy = " (jpg masks blur their colours: save them as png)" if masks[0].suffix.lower()[:3] == ".jp" else ""
    return UserError(
        f"the masks of {root} are colours, and there is no class table{lossy}. Colours found:\n{seen}\n"
        f"Write {root / 'classes.csv'} with a name for each, and 1 in the last column of what is to be ignored:\n"
        f"name,r,g,b,ignore\n{rows}"
    )
