"""Opening a folder of images and masks: anyone's own, or one written by `crisp prepare` (the same layout).

images/  x.png x.jpg x.tif ...      masks/  x.png or x.tif, one per image, of the same name
classes.csv (or .yaml)              split.csv     both optional; dataset.json in prepared folders
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import numpy as np

from crispseg.data.classes import IGNORE, ClassTable
from crispseg.data.gaps import Gapped, find_gaps
from crispseg.data.images import SUFFIXES, Array, read_header, read_image, read_nodata
from crispseg.data.labels import Mask, encode, histogram, is_lossy, read_labels, read_table_mask
from crispseg.data.manifest import (
    FOLDERS,
    JOURNAL,
    MANIFEST,
    Manifest,
    Statistics,
    band_sums,
    read_manifest,
    statistics_of,
)
from crispseg.data.placing import check_placing
from crispseg.data.protocol import SPLITS, Labels, Protocol, get_protocol, own_protocol
from crispseg.data.split import (
    UNUSED,
    VAL_SHARE,
    Window,
    blocked_split,
    check_split,
    composed,
    read_kinds,
    read_split,
    strip_split,
)
from crispseg.data.tables import Classes, find_table
from crispseg.errors import UserError, unknown
from crispseg.reading import list_folder

Split = Mapping[str, str] | str | Path
_THREADS = 8  # that decode masks


@dataclasses.dataclass(frozen=True)
class Record:
    """One image, or the part of it that belongs to a split, with its label files by variant."""

    name: str
    image: Path
    masks: Mapping[str, Path]
    height: int
    width: int
    window: Window | None = None


class Folder:
    """An opened data set: its records by split, and arrays in the ids of its protocol."""

    def __init__(
        self,
        root: Path,
        table: ClassTable,
        protocol: Protocol,
        splits: Mapping[str, tuple[Record, ...]],
        bands: tuple[int, str],
        sums: Mapping[str, Sequence[Sequence[float]]] | None = None,
        counts: Mapping[str, list[int]] | None = None,
    ) -> None:
        self.root, self.table, self.protocol, self.splits = root, table, protocol, splits
        self.bands, self.dtype = bands
        self.by_table = dict(counts or {})  # of whole images, by the ids of the table: what the split was made with
        self.counts: dict[tuple[str, str], list[int]] = {}  # of masks that were read, by record and label variant
        self._sums: dict[str, Sequence[Sequence[float]]] = dict(sums or {})

    def __repr__(self) -> str:
        counts = ", ".join(f"{split} {len(records)}" for split, records in self.splits.items() if records)
        return f"Folder({self.root}, {self.protocol.name} #{self.protocol.hash}, {counts})"

    def records(self, split: str) -> tuple[Record, ...]:
        """The images of a split; an empty one is the user's mistake."""
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        if not self.splits.get(split):
            filled = [name for name in SPLITS if self.splits.get(name)]
            raise UserError(f"the {split} split of {self.root} is empty; it has {', '.join(filled) or 'no images'}")
        return self.splits[split]

    def read_image(self, record: Record) -> Array:
        """(H, W, bands), NaN or 0 where there is no data"""
        return self.read_gapped(record).image

    def read_gapped(self, record: Record) -> Gapped:
        array = read_image(record.image)
        if array.shape[2] != self.bands or str(array.dtype) != self.dtype:
            raise UserError(
                f"{record.image} has {array.shape[2]} bands of {array.dtype}, the others of {self.root} have "
                f"{self.bands} of {self.dtype}"
            )
        if array.shape[:2] != (record.height, record.width) and record.window is None:
            raise UserError(
                f"{record.image} is {array.shape[1]} x {array.shape[0]} px, but {MANIFEST} notes {record.width} x "
                f"{record.height} px; put the old one back, or prepare the folder again"
            )
        return find_gaps(_cut(array, record.window), read_nodata(record.image))

    def read_mask(self, record: Record, labels: Labels = "full") -> Mask:
        """(H, W), the protocol's class ids, 255 where ignored and where the image has no data"""
        ids = self._read_ids(record, labels)
        may_have_gaps = np.dtype(self.dtype).kind == "f" or read_nodata(record.image) is not None
        return _learnt(ids, self.read_gapped(record)) if may_have_gaps else ids

    def read_pair(self, record: Record, labels: Labels = "full") -> tuple[Gapped, Mask]:
        """Image and mask, each of whose files is read once."""
        gapped = self.read_gapped(record)
        return gapped, _learnt(self._read_ids(record, labels), gapped)

    def _read_ids(self, record: Record, labels: Labels) -> Mask:
        path = record.masks.get(labels)
        if path is None:
            there = ", ".join(record.masks) or "none"
            raise UserError(f"{record.name} in {self.root} has no {labels} labels (there: {there})")
        array = read_table_mask(path, self.table)
        if array.shape[:2] != (record.height, record.width) and record.window is None:
            raise UserError(
                f"{path} is {array.shape[1]} x {array.shape[0]} px, but its image is {record.width} x {record.height}"
            )
        mask, _ = encode(_cut(array, record.window), self.table, str(path))
        return self._to_protocol[mask]

    def class_counts(self, record: Record, labels: Labels = "full") -> list[int]:
        """Labelled pixels of each of the protocol's classes; a mask is read once."""
        key = (record.name, labels)
        if key not in self.counts and labels == "full" and record.name in self.by_table:
            self.counts[key] = self._of_protocol(self.by_table[record.name])
        elif key not in self.counts:
            self.counts[key] = histogram(self.read_mask(record, labels), len(self.protocol.classes))
        return self.counts[key]

    def _of_protocol(self, by_table: Sequence[int]) -> list[int]:
        counts = [0] * len(self.protocol.classes)
        for index, pixels in enumerate(by_table):
            if self._to_protocol[index] != IGNORE:
                counts[self._to_protocol[index]] += pixels
        return counts

    @functools.cached_property
    def _to_protocol(self) -> Mask:
        """(256,) the protocol's id of each id of the table."""
        lookup = np.full(256, IGNORE, np.uint8)
        for index, name in enumerate(self.table.names):
            if name in self.protocol.classes:
                lookup[index] = self.protocol.classes.index(name)
            elif name not in self.protocol.ignored:
                raise UserError(
                    f"class {name!r} of {self.root} is not in protocol {self.protocol.name}, which has "
                    f"{', '.join(self.protocol.classes)}"
                )
        return lookup

    def statistics(self, split: str = "train") -> Statistics:
        """Mean and standard deviation of each band over a split."""
        totals = np.zeros((self.bands, 3))
        for record in self.records(split):
            if record.name not in self._sums:
                gapped = self.read_gapped(record)
                self._sums[record.name] = band_sums(gapped.image, gapped.measured)
            if len(self._sums[record.name]) != self.bands:
                raise UserError(
                    f"dataset.json notes {len(self._sums[record.name])} bands of {record.name}, but the images of "
                    f"{self.root} have {self.bands}; prepare the folder again"
                )
            totals += np.array(self._sums[record.name])
        return statistics_of(totals)


def _learnt(mask: Mask, gapped: Gapped) -> Mask:
    return mask if gapped.unlearnt is None else np.where(gapped.unlearnt, np.uint8(IGNORE), mask)


def _cut(array: Array, window: Window | None) -> Array:
    if window is None:
        return array
    return array[window.top : window.top + window.height, window.left : window.left + window.width]


def open_folder(
    root: str | Path,
    *,
    protocol: Protocol | str | None = None,
    classes: Classes | None = None,
    split: Split | None = None,
    val_share: float = VAL_SHARE,
    seed: int = 0,
    unlisted: Literal["error", "unused"] = "error",
    counts: Mapping[str, list[int]] | None = None,
) -> Folder:
    """Open `root`. What is not given is taken from the folder, and what is not there is worked out:

    `protocol` a name or an object (it then decides the split), else the first that a prepared folder's dataset.json
    names; `classes` a ClassTable, the name of a known set or a path, else classes.csv, classes.yaml or dataset.json,
    else the ids found in the masks; `split` a mapping or a path, else split.csv, else a split by place that has every
    class on both sides as far as that can be, for which all masks are read. Images that a given split does not name
    are a mistake, or with `unlisted` left out. `counts` are pixels by class of masks that were read already, by image.
    """
    root = Path(root)
    files = find_pairs(root)
    manifest = read_manifest(root)
    if "images" in manifest:  # what else lies there was not written with it
        listed = {entry["name"] for entry in manifest["images"]}
        files.images = {name: path for name, path in files.images.items() if name in listed}
    if protocol is None and split is None:
        protocol = _first_protocol(manifest)
    protocol = get_protocol(protocol) if isinstance(protocol, str) else protocol
    records = _records(files, manifest)
    masks = [path for record in records for path in record.masks.values()]
    _refuse_lossy(root, masks)
    table = find_table(root, masks, classes, protocol.dataset if protocol else "")
    if protocol is not None:
        splits = _protocol_split(records, protocol, root)
    else:
        chosen = split if split is not None else (root / "split.csv" if (root / "split.csv").exists() else None)
        if isinstance(chosen, Mapping):
            left_out = {record.name: UNUSED for record in records} if unlisted == "unused" else {}
            chosen = left_out | {composed(name): kind for name, kind in chosen.items()}
        counts = _table_counts(records, table, counts) if chosen is None and len(records) > 1 else counts
        splits = _own_split(records, chosen, val_share, seed, counts)
        names = {kind: [record.name for record in members] for kind, members in splits.items()}
        protocol = own_protocol(root.resolve().name, table, names, manifest.get("resolution"))
    if not any(splits.values()):
        raise UserError(f"{root} has no image in any split")
    _refuse_unlabelled(root, splits)
    first = read_header(next(record for members in splits.values() for record in members).image)
    sums = {entry["name"]: entry["sums"] for entry in manifest.get("images", [])}
    return Folder(root, table, protocol, splits, (first.bands, first.dtype), sums, counts)


def scored_split(root: str | Path, protocol: str | None = None, split: str | Path | None = None) -> str:
    """The split that final scores are made on when `root` is opened so, without opening it; `val` for a split that is
    still to be made, and where there is no folder."""
    root = Path(root)
    if protocol is None and split is None:
        protocol = _first_protocol(read_manifest(root))
    if protocol is not None:
        return get_protocol(protocol).scored_split
    path = Path(split) if split is not None else root / "split.csv"
    return "test" if path.is_file() and "test" in read_kinds(path) else "val"


def _first_protocol(manifest: Manifest) -> str | None:
    return next(iter(manifest.get("protocols", {})), None)


@dataclasses.dataclass
class Pairs:
    images: dict[str, Path]
    masks: dict[str, dict[str, Path]]  # by label variant, then by name


def find_pairs(root: Path) -> Pairs:
    """The image and mask files of a folder by name (without suffix)."""
    if not root.is_dir():
        raise UserError(f"{root} is a file, not a data folder" if root.is_file() else f"there is no data folder {root}")
    if not (root / "images").is_dir():
        raise UserError(
            f"{root} has no folder images/; own data needs images/ and masks/, and the archives of potsdam, "
            f"vaihingen and loveda go through `crisp prepare` first"
        )
    if (root / JOURNAL).exists():  # some of its files are missing, or of other choices than the rest
        raise UserError(f"`crisp prepare` has not finished {root}; run the same command again, it continues")
    masks = {variant: _files(root / folder) for variant, folder in FOLDERS.items() if (root / folder).is_dir()}
    if not masks:
        raise UserError(f"{root} has no folder masks/ with a mask for each image")
    images = _files(root / "images")
    if not images:
        deeper = any(path.is_dir() for path in list_folder(root / "images"))
        where = " but folders, which are not looked into: put the files into images/ itself" if deeper else ""
        raise UserError(f"{root / 'images'} holds no {', '.join(SUFFIXES)} file{where}")
    return Pairs(images, masks)


def _files(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in list_folder(folder):
        if path.suffix.lower() in SUFFIXES and not path.name.startswith("."):
            name = composed(path.stem)
            if name in found:
                raise UserError(f"{folder} holds both {found[name].name} and {path.name}; keep one of them")
            found[name] = path
    return dict(sorted(found.items(), key=lambda item: _natural(item[0])))


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in re.split(r"(\d+)", name)]


def _records(files: Pairs, manifest: Manifest) -> list[Record]:
    sizes = {entry["name"]: (entry["height"], entry["width"]) for entry in manifest.get("images", [])}
    records = []
    for name, image in files.images.items():
        masks = {variant: paths[name] for variant, paths in files.masks.items() if name in paths}
        if name in sizes:
            height, width = sizes[name]
        else:
            header = read_header(image)
            height, width = header.height, header.width
            for path in masks.values():
                mask = read_header(path)
                if (mask.height, mask.width) != (height, width):
                    raise UserError(
                        f"{path} is {mask.width} x {mask.height} px, but its image {image.name} is "
                        f"{width} x {height} px"
                    )
                check_placing(image, path, header)
        records.append(Record(name, image, masks, height, width))
    return records


def _protocol_split(records: list[Record], protocol: Protocol, root: Path) -> dict[str, tuple[Record, ...]]:
    names = [record.name for record in records]
    gone = [tile for kind in SPLITS for tile in protocol.missing(kind, names)]
    if gone:
        raise UserError(f"{root} lacks {len(gone)} tiles of protocol {protocol.name}: {', '.join(gone)}")
    return {kind: tuple(record for record in records if protocol.holds(kind, record.name)) for kind in SPLITS}


def _table_counts(
    records: list[Record], table: ClassTable, known: Mapping[str, list[int]] | None
) -> dict[str, list[int]]:
    """Labelled pixels of each image by the table's classes."""

    def count(record: Record) -> list[int]:
        if known is not None and record.name in known:
            return known[record.name]
        if "full" not in record.masks:
            return [0] * len(table.names)
        return histogram(read_labels(record.masks["full"], table)[0], len(table.names))

    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip([record.name for record in records], pool.map(count, records), strict=True))


def _own_split(
    records: list[Record], split: Split | None, share: float, seed: int, counts: Mapping[str, list[int]] | None
) -> dict[str, tuple[Record, ...]]:
    names = [record.name for record in records]
    if split is None and len(records) == 1:
        parts = strip_split(records[0].height, records[0].width, share, seed=seed)
        blocks = [(kind, _part(records[0], window)) for kind, window in parts]
        return {kind: tuple(block for own, block in blocks if own == kind) for kind in SPLITS}
    if split is None:
        sizes = {record.name: record.height * record.width for record in records}
        chosen = blocked_split(sizes, share, seed, counts)
    elif isinstance(split, Mapping):
        chosen = check_split(split, names, "the split")
    else:
        chosen = read_split(split, names)
    return {kind: tuple(r for r in records if chosen[r.name] == kind) for kind in SPLITS}


PART = re.compile(r"_(rows|columns)\d+-\d+$")  # what a part of an image has at the end of its name


def _part(record: Record, window: Window) -> Record:
    upright = window.width == record.width
    span = (window.top, window.height) if upright else (window.left, window.width)
    name = f"{record.name}_{'rows' if upright else 'columns'}{span[0]}-{sum(span)}"
    return dataclasses.replace(record, name=name, height=window.height, width=window.width, window=window)


def _refuse_lossy(root: Path, masks: Sequence[Path]) -> None:
    lossy = [path.name for path in masks if is_lossy(path.name)]
    if lossy:
        raise UserError(
            f"{len(lossy)} masks of {root} are jpg, which blurs ids and colours, e.g. {lossy[0]}: save them as png, "
            "from what they were made from"
        )


def _refuse_unlabelled(root: Path, splits: Mapping[str, tuple[Record, ...]]) -> None:
    bare = [r.name for kind in ("train", "val") for r in splits.get(kind, ()) if not r.masks]
    if bare:
        raise UserError(
            f"{len(bare)} images of {root} have no mask of the same name: {', '.join(bare[:5])}"
            f"{', ...' if len(bare) > 5 else ''}; add masks, or list the images as unused in split.csv"
        )
