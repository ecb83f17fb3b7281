"""LoveDA: 5987 images of 1024 x 1024 px at 30 cm, red-green-blue, seven classes, urban and rural.

Train.zip, Val.zip and Test.zip are published on Zenodo under the title LoveDA ("a remote sensing land-cover
dataset for domain adaptive semantic segmentation"). The labels of Test are not public.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from crispseg.data import known
from crispseg.data.classes import IGNORE, ClassTable
from crispseg.data.plan import DatasetPlan, Item, Wanted, collect, mmseg_plan, unpaired
from crispseg.data.sources import Entry

BANDS = known.BANDS["loveda"]
_FOLDERS = re.compile(r"(train|val|test)/(urban|rural)/(images_png|masks_png|masks_png_convert)$")


def plan(entries: Sequence[Entry], wanted: Wanted = "both") -> DatasetPlan:
    if any("img_dir" in entry.folders for entry in entries):
        found = mmseg_plan("loveda", entries, BANDS)
    else:
        found = _official(entries)
    counts = Counter(item.name.split("_")[0] for item in found.items)
    _check_counts(found, counts)
    return found


def _official(entries: Sequence[Entry]) -> DatasetPlan:
    places = [(match, e) for e in entries if (match := _FOLDERS.search("/".join(e.folders)))]
    # GeoSeg's converted labels (0 to 6, 7 ignored) stand in where the original ones are gone.
    original = any(match[3] == "masks_png" for match, _ in places)
    table, masks = (known.LOVEDA, "masks_png") if original else (_CONVERTED, "masks_png_convert")
    items = collect(
        (f"{match[1]}_{match[2]}_{entry.path.stem}", "image" if match[3] == "images_png" else "full", entry)
        for match, entry in places
        if match[3] in ("images_png", masks) and entry.path.suffix.lower() == ".png"
    )
    return DatasetPlan(
        "loveda",
        "loveda",
        table,
        sorted(items.values(), key=_in_number_order),
        BANDS,
        1024,
        missing=unpaired(list(items.values()), unlabelled_prefix="test_"),
    )


_CONVERTED = ClassTable(known.LOVEDA.names, ignored_values=(7, IGNORE))


def _in_number_order(item: Item) -> tuple[str, int, str]:
    place, _, number = item.name.rpartition("_")
    return (place, int(number) if number.isdecimal() else -1, number)


def _check_counts(plan: DatasetPlan, counts: Counter[str]) -> None:
    for split, published in known.LOVEDA_COUNTS.items():
        archive = f"{split.capitalize()}.zip of LoveDA (on Zenodo)"
        if counts[split]:
            if counts[split] != published:
                plan.remarks.append(f"{split} has {counts[split]} images; {archive} has {published}")
        elif split == "test":
            plan.remarks.append(f"no test images; they are in {archive} and have no public labels")
        else:
            plan.missing.append(f"no {split} images; they are in {archive}")
