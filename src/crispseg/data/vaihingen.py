"""ISPRS Vaihingen: 33 tiles of about 2500 x 2000 px at 9 cm, near infrared-red-green, six classes.

The archives are asked for at the ISPRS benchmark "2D Semantic Labeling - Vaihingen":
ISPRS_semantic_labeling_Vaihingen.zip with the images (folder top), and two with the labels, whose names end in
ground_truth_COMPLETE.zip (full) and ground_truth_eroded_COMPLETE.zip (eroded).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from crispseg.data import known
from crispseg.data.plan import DatasetPlan, Wanted, collect, geoseg_patches_plan, mmseg_plan, pick_tiles
from crispseg.data.sources import Entry

BANDS = known.BANDS["vaihingen"]
_SOURCE = "of the ISPRS Vaihingen 2D semantic labelling benchmark"
ARCHIVES = {
    "image": f"ISPRS_semantic_labeling_Vaihingen.zip (folder top) {_SOURCE}",
    "full": f"ISPRS_semantic_labeling_Vaihingen_ground_truth_COMPLETE.zip {_SOURCE}",
    "eroded": f"ISPRS_semantic_labeling_Vaihingen_ground_truth_eroded_COMPLETE.zip {_SOURCE}",
}
_FILE = re.compile(r"top_mosaic_09cm_(area\d+)(_noBoundary)?\.(?:tif|tiff|png)", re.IGNORECASE)
# Images and full labels have the same file name; the folder tells them apart.
_LABEL_FOLDER = re.compile(r"gts|ground_?truth|(?:mask|label|ann)s?(?![a-z])", re.IGNORECASE)
_MMSEG_NAME = re.compile(r"area\d+_\d+_\d+_\d+_\d+$")
_PATCH = re.compile(r"top_mosaic_09cm_(area\d+)(?=_\d+_\d+)")


def plan(entries: Sequence[Entry], wanted: Wanted = "both") -> DatasetPlan:
    if any("img_dir" in entry.folders for entry in entries):
        return mmseg_plan("vaihingen", entries, BANDS, _MMSEG_NAME, known.VAIHINGEN_TILES)
    triples = []
    for entry in entries:
        match = _FILE.fullmatch(entry.path.name)
        if match:
            plain = "full" if _LABEL_FOLDER.search(entry.folder) else "image"
            triples.append((match[1].lower(), "eroded" if match[2] else plain, entry))
    if not triples and any(_PATCH.match(entry.path.stem) for entry in entries):
        return geoseg_patches_plan("vaihingen", entries, _PATCH, BANDS)
    items, missing = pick_tiles(collect(triples), known.VAIHINGEN_TILES, wanted, ARCHIVES)
    return DatasetPlan("vaihingen", "isprs", known.ISPRS, items, BANDS, problems=_two_folders(triples), missing=missing)


def _two_folders(triples: Sequence[tuple[str, str, Entry]]) -> list[str]:
    """Full labels in a folder of another name pass for images; then an area has two."""
    folders: dict[str, dict[str, Entry]] = {}
    for area, role, entry in triples:
        if role == "image":
            folders.setdefault(area, {}).setdefault(entry.folder, entry)
    twice = next((list(found.values()) for found in folders.values() if len(found) > 1), None)
    if twice is None:
        return []
    return [
        f"both {twice[0].path} and {twice[1].path} may be the image: give the folder of the full labels the name "
        "labels, or move away what is not wanted"
    ]
