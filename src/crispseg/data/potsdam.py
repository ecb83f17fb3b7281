"""ISPRS Potsdam: 38 tiles of 6000 x 6000 px at 5 cm, six classes; red-green-blue, or with near infrared.

The archives are asked for at the ISPRS benchmark "2D Semantic Labeling - Potsdam": 2_Ortho_RGB.zip with the images (or
3_Ortho_IRRG.zip, or 4_Ortho_RGBIR.zip), 5_Labels_all.zip with the full labels and 5_Labels_all_noBoundary.zip with the
eroded ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from crispseg.data import known
from crispseg.data.plan import DatasetPlan, Wanted, collect, geoseg_patches_plan, mmseg_plan, pick_tiles
from crispseg.data.sources import Entry
from crispseg.errors import UserError

BANDS = known.BANDS["potsdam"]
COMPOSITIONS = {
    "rgb": BANDS,
    "irrg": known.IRRG,
    "rgbir": (*BANDS, "near_infrared"),
}
_ARCHIVE_OF = {"rgb": "2_Ortho_RGB.zip", "irrg": "3_Ortho_IRRG.zip", "rgbir": "4_Ortho_RGBIR.zip"}
_SOURCE = "of the ISPRS Potsdam 2D semantic labelling benchmark"
ARCHIVES = {
    "image": f"{_ARCHIVE_OF['rgb']}, {_ARCHIVE_OF['irrg']} or {_ARCHIVE_OF['rgbir']} {_SOURCE}",
    "full": f"5_Labels_all.zip {_SOURCE}",
    "eroded": f"5_Labels_all_noBoundary.zip {_SOURCE}",
}
_KINDS = "RGB|IRRG|RGBIR|label|label_noBoundary"
_FILE = re.compile(rf"top_potsdam_0?(\d+)_0?(\d+)_({_KINDS})\.(?:tif|tiff|png)", re.IGNORECASE)
_ROLES = {"label": "full", "label_noboundary": "eroded"}
_MMSEG_NAME = re.compile(r"\d+_\d+_\d+_\d+_\d+_\d+$")  # tile, then the window
_PATCH = re.compile(r"top_potsdam_(\d+)_(\d+)(?=_\d+_\d+)")


def plan(entries: Sequence[Entry], wanted: Wanted = "both", images: str = "auto") -> DatasetPlan:
    """`images`: which of COMPOSITIONS to take; "auto" is the one that is there, red-green-blue where several are."""
    if any("img_dir" in entry.folders for entry in entries):
        return mmseg_plan("potsdam", entries, BANDS, _MMSEG_NAME, known.POTSDAM_TILES)
    matches = [(match, entry) for entry in entries if (match := _FILE.fullmatch(entry.path.name))]
    there = [name for name in COMPOSITIONS if any(match[3].lower() == name for match, _ in matches)]
    if there and images not in ("auto", *there):
        raise UserError(
            f"there are no {images} images of Potsdam, but {' and '.join(there)} ones: leave out --images, or give "
            f"--images {there[0]}; {images} ones are in {_ARCHIVE_OF[images]} {_SOURCE}"
        )
    chosen = images if images != "auto" else (there or ["rgb"])[0]
    roles = {**_ROLES, chosen: "image"}
    triples = [
        (f"{match[1]}_{match[2]}", roles[match[3].lower()], entry)
        for match, entry in matches
        if match[3].lower() in roles
    ]
    if not triples and any(_PATCH.match(entry.path.stem) for entry in entries):
        return geoseg_patches_plan("potsdam", entries, _PATCH, BANDS)
    items, missing = pick_tiles(collect(triples), known.POTSDAM_TILES, wanted, ARCHIVES)
    remarks = [f"{chosen} images are taken; {', '.join(there)} are there: choose with --images"] if there[1:] else []
    bands = COMPOSITIONS[chosen]
    return DatasetPlan("potsdam", "isprs", known.ISPRS, items, bands, 6000, missing=missing, remarks=remarks)
