"""ISPRS Potsdam: 38 tiles of 6000 x 6000 px at 5 cm, red-green-blue, six classes.

The archives are asked for at the ISPRS benchmark "2D Semantic Labeling - Potsdam": 2_Ortho_RGB.zip with the
images, 5_Labels_all.zip with the full labels and 5_Labels_all_noBoundary.zip with the eroded ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from crispseg.data import known
from crispseg.data.plan import Plan, Wanted, collect, geoseg_patches_plan, mmseg_plan, pick_tiles
from crispseg.data.sources import Entry

BANDS = ("red", "green", "blue")
_SOURCE = "of the ISPRS Potsdam 2D semantic labelling benchmark"
ARCHIVES = {
    "image": f"2_Ortho_RGB.zip {_SOURCE}",
    "full": f"5_Labels_all.zip {_SOURCE}",
    "eroded": f"5_Labels_all_noBoundary.zip {_SOURCE}",
}
_FILE = re.compile(r"top_potsdam_0?(\d+)_0?(\d+)_(RGB|label|label_noBoundary)\.(?:tif|tiff|png)", re.IGNORECASE)
_ROLES = {"rgb": "image", "label": "full", "label_noboundary": "eroded"}
_MMSEG_NAME = re.compile(r"\d+_\d+_\d+_\d+_\d+_\d+$")  # tile, then the window
_PATCH = re.compile(r"top_potsdam_(\d+)_(\d+)(?=_\d+_\d+)")


def plan(entries: Sequence[Entry], wanted: Wanted = "both") -> Plan:
    if any("img_dir" in entry.folders for entry in entries):
        return mmseg_plan("potsdam", entries, BANDS, _MMSEG_NAME, known.POTSDAM_TILES)
    triples = []
    for entry in entries:
        match = _FILE.fullmatch(entry.path.name)
        if match:
            triples.append((f"{match[1]}_{match[2]}", _ROLES[match[3].lower()], entry))
    if not triples and any(_PATCH.match(entry.path.stem) for entry in entries):
        return geoseg_patches_plan("potsdam", entries, _PATCH, BANDS)
    items, missing = pick_tiles(collect(triples), known.POTSDAM_TILES, wanted, ARCHIVES)
    return Plan("potsdam", "isprs", known.ISPRS, items, BANDS, 6000, missing=missing)
