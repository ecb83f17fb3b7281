"""Where a set's pictures come from: class folders, npz shards of encoded pictures, or any folder of images.

A source knows how many pictures it has, their labels, and how to decode one; the pictures' common size is not its
business. `open_source` finds out which kind a folder is.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from crispseg import memory
from crispseg.data.images import SUFFIXES, Array, read_image
from crispseg.data.manifest import FOLDERS
from crispseg.errors import UserError
from crispseg.pretrain.squares import Windows, band_note, three_bands
from crispseg.reading import DAMAGE, LARGEST_CSV, read_text, reason, require_file

_SUFFIXES = (*SUFFIXES, ".webp")
_IMAGES = "images"  # beside masks: the layout of `crisp train`
_UNLABELLED = "labels=false (in a config, labels: false of the set)"
_HELD_BACK = 10  # one in so many pictures scores, where a folder has no val/


class Source(Protocol):
    """Pictures by number; `classes` is empty, and so are `labels`, where there are none."""

    classes: tuple[str, ...]
    labels: NDArray[np.int64]
    notes: tuple[str, ...]  # what a user should know of how it is read

    @property
    def files(self) -> Sequence[Path]:
        """All that is read."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> Array:
        """(H, W, 3) of 8 bits"""

    def name(self, index: int) -> str:
        """For messages."""


class Files:
    """A picture per file."""

    def __init__(self, files: Sequence[Path], labels: Sequence[int] = (), classes: tuple[str, ...] = ()) -> None:
        self.files, self.classes = list(files), classes
        self.labels = np.asarray(labels, np.int64)
        self.notes = tuple(filter(None, (band_note(path) for path in self.files[:1])))  # of millions, one is asked

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> Array:
        return three_bands(read_image(self.files[index]))

    def name(self, index: int) -> str:
        return str(self.files[index])


class Shards:
    """npz files that hold encoded pictures one after the other: `data`, `offsets` and `labels`.

    Without names for the classes the labels are left alone.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, files: Sequence[Path], classes: tuple[str, ...] | None = None) -> None:
        self.classes = classes or ()
        parts = [_read_shard(path) for path in files]
        self._data = [data for data, _, _ in parts]
        self._places = [
            (shard, int(a), int(b))
            for shard, (_, offsets, _) in enumerate(parts)
            for a, b in itertools.pairwise(offsets)
        ]
        self.files, self.labels = list(files), np.empty(0, np.int64)
        if classes is not None:
            self.files.append(files[0].with_name("classes.txt"))
            self.labels = np.concatenate([labels for _, _, labels in parts]).astype(np.int64)
        if self.labels.size and self.labels.max() >= len(self.classes):
            raise UserError(
                f"{files[0].parent} has labels up to {self.labels.max()}, but classes.txt names "
                f"{len(self.classes)} classes"
            )

    def __len__(self) -> int:
        return len(self._places)

    def read(self, index: int) -> Array:
        shard, start, end = self._places[index]
        return three_bands(read_image(self._data[shard][start:end].tobytes(), self.name(index)))

    def name(self, index: int) -> str:
        shard, start, _ = self._places[index]
        return f"{self.files[shard]} at byte {start}"


def open_source(root: Path, labelled: bool, side: int) -> tuple[Source, Source | None]:
    """The training pictures of a folder, and those kept back for scores (labelled sets only)."""
    if not root.is_dir():
        raise UserError(f"there is no folder {root} to learn from")
    shards = sorted(root.glob("train*.npz"))
    if shards and not labelled:
        return Shards(shards), None
    if shards:
        classes = _class_names(root)
        held_back = sorted(root.glob("val*.npz"))
        return Shards(shards, classes), Shards(held_back, classes) if held_back else None
    for_segmentation = (root / _IMAGES).is_dir() and any((root / masks).is_dir() for masks in FOLDERS.values())
    if labelled and for_segmentation:
        raise UserError(
            f"{root} is a folder for segmentation, with {_IMAGES}/ and masks/ instead of class folders: say "
            f"{_UNLABELLED} to learn from the pictures in its {_IMAGES}/ alone"
        )
    if labelled:
        return _class_folders(root)
    return _pictures_alone(root / _IMAGES if for_segmentation else root, side), None


def _pictures_alone(root: Path, side: int) -> Windows:
    files = sorted(path for path in root.rglob("*") if path.suffix.lower() in _SUFFIXES)
    if not files:
        raise UserError(f"{root} holds no {', '.join(_SUFFIXES)} file")
    windows = Windows(files, side)
    if not windows.cut:
        raise UserError(f"no image below {root} is as large as a square of {side} px; give a smaller side=PIXELS")
    if not len(windows):
        raise UserError(
            f"nothing to learn from below {root}: all {windows.cut} squares of {side} px are without data or "
            "of one colour"
        )
    return windows


def _class_folders(root: Path) -> tuple[Files, Files | None]:
    parts = {part: root / part for part in ("train", "val") if (root / part).is_dir()}
    files = _labelled_files(parts.get("train", root))
    classes = tuple(sorted({path.parent.name for path in files}))
    if len(classes) < 2:
        raise UserError(
            f"{root} has {'no class folder with pictures' if not classes else f'one class, {classes[0]}'}; labelled "
            f"sets are folders CLASS/PICTURE (or npz shards): for pictures without labels say {_UNLABELLED}"
        )
    numbers = {name: number for number, name in enumerate(classes)}
    if "val" in parts:
        scoring = _labelled_files(parts["val"])
        strange = sorted({path.parent.name for path in scoring} - set(classes))
        if strange:
            raise UserError(f"{parts['val']} has classes that {parts['train']} has not: {', '.join(strange[:3])}")
        training = files
    else:
        scoring = [path for path in files if _held_back(path)]
        training = [path for path in files if not _held_back(path)]
    made = [Files(some, [numbers[p.parent.name] for p in some], classes) for some in (training, scoring)]
    return made[0], made[1] if scoring else None


def _labelled_files(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("*/*") if path.suffix.lower() in _SUFFIXES)


def _held_back(path: Path) -> bool:
    """By a hash of its name, so that adding pictures moves none."""
    digest = hashlib.blake2b(f"{path.parent.name}/{path.name}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % _HELD_BACK == 0


def _class_names(root: Path) -> tuple[str, ...]:
    path = root / "classes.txt"
    if not path.is_file():
        raise UserError(f"{root} holds shards but no classes.txt with a class's name per line")
    return tuple(line.strip() for line in read_text(path, LARGEST_CSV, "list").splitlines() if line.strip())


def _read_shard(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[Any]]:
    require_file(path, "shard")
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > memory.free():
            raise UserError(f"{path} takes {unpacked / 2**30:.1f} GiB when it is read, and fewer are free")
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            data, offsets, labels = file["data"], file["offsets"], file["labels"]
    except (*DAMAGE, zipfile.BadZipFile, zlib.error, struct.error) as error:
        raise UserError(f"{path} is no whole shard with data, offsets and labels: {reason(error)}") from error
    plain = (
        all(isinstance(part, np.ndarray) and part.ndim == 1 for part in (data, offsets, labels))
        and data.dtype == np.uint8
    )
    if not plain or offsets.dtype.kind not in "iu" or labels.dtype.kind not in "iu":
        raise UserError(f"{path} is damaged: data, offsets and labels must be lists of whole numbers")
    whole = len(offsets) == len(labels) + 1 and bool((np.diff(offsets.astype(np.int64)) > 0).all())
    if not whole or (len(offsets) and not 0 <= offsets[0] <= offsets[-1] <= len(data)):
        raise UserError(f"{path} is damaged: its offsets do not fit its {len(labels)} labels and {len(data)} bytes")
    if len(labels) and labels.min() < 0:
        raise UserError(f"{path} is damaged: it has a label below 0")
    return data, offsets.astype(np.int64), labels
