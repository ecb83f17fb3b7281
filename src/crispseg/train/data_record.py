"""What a run learns from, so that it does not go on with other pixels: data.json, a stamp of every file or folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from crispseg import config as configs
from crispseg.data.folder import PART, Folder, Record, find_pairs
from crispseg.errors import UserError
from crispseg.files import write_json
from crispseg.fingerprint import are_copies, changed, content_of, size_of, stamps
from crispseg.reading import read_json

DATA = "data.json"
_SPLITS = ("train", "val")
_ALSO = "also"  # before the number of a set that trains along
_LABELS = re.compile(r" \(\w+ labels\)$")


def record_data(run: Path, described: Mapping[str, str]) -> None:
    write_json(run / DATA, {"files": dict(described)})


def check_data(run: Path, described: Mapping[str, str], where: str) -> None:
    """Refuse files that are not those the run began with; a run without a record gets one."""
    path = run / DATA
    if not path.exists():
        record_data(run, described)
        return
    recorded = _recorded(path)
    if recorded == _without_companions(recorded):  # earlier versions did not note them
        described = _without_companions(described)
    what = changed(recorded, described)
    if what:
        raise UserError(
            f"the data in {where} is not what this run began with: {what}; the weights and the model's means "
            f"would no longer belong together. Begin a new run, or remove {path} to go on all the same"
        )


def recorded_digest(run: Path) -> str | None:
    """The run's record of its first set in a word; None where it has none."""
    path = run / DATA
    return digest(_without_companions(_recorded(path))) if path.exists() else None


def digest(described: Mapping[str, str]) -> str:
    return hashlib.blake2b(json.dumps(sorted(described.items())).encode(), digest_size=16).hexdigest()


def lie_in(run: Path, data: str | Path) -> bool:
    """Whether all images that the run trains and selects on are in a folder, by name and content."""
    images = find_pairs(Path(data)).images
    wanted = {name if name in images else PART.sub("", name): one for name, one in _images(run, *_SPLITS).items()}
    known = bool(wanted) and wanted.keys() <= images.keys()
    return known and are_copies({images[name]: one for name, one in wanted.items()})


def trained_on(run: Path, records: Iterable[Record]) -> list[str]:
    """Those of the images whose content the run was trained on, whatever they are called; parts go by name, too."""
    trained = {name: content_of(one) for name, one in _images(run, "train", _ALSO).items()}
    contents, sizes = {*trained.values()}, {*map(size_of, trained.values())}
    likely = [record for record in records if str(record.image.stat().st_size) in sizes]
    now = stamps(record.image for record in likely)

    def is_known(record: Record) -> bool:
        content = content_of(now[os.path.abspath(record.image)])
        return content in contents if record.window is None else trained.get(record.name) == content

    return [record.name for record in likely if is_known(record)]


def _images(run: Path, *splits: str) -> dict[str, str]:
    """The recorded stamps of the images of these splits, by name; none where the run has no record."""
    path = run / DATA
    entries = [(*key.partition("/"), one) for key, one in _recorded(path).items()] if path.exists() else []
    return {name: one for split, _, name, one in entries if split in splits and not _LABELS.search(name)}


def _recorded(path: Path) -> dict[str, str]:
    found: dict[str, str] = configs.checked(dict[str, dict[str, str]], read_json(path), str(path)).get("files", {})
    return found


def describe(folder: Folder, along: Sequence[Folder] = ()) -> dict[str, str]:
    """The stamps of all images and labels, by split and name and not by place: the data may move. Of the sets that
    train along, those that train."""
    files = _files((split, record) for split in _SPLITS for record in folder.splits.get(split, ()))
    for number, other in enumerate(along, 1):
        files += _files((f"{_ALSO}/{number}", record) for record in other.records("train"))
    found: Mapping[str, str] = stamps([path for _, path in files], moves=True)
    return {name: found.get(os.path.abspath(path), "missing") for name, path in files}


def _without_companions(described: Mapping[str, str]) -> dict[str, str]:
    return {name: one for name, one in described.items() if not name.startswith(f"{_ALSO}/")}


def _files(of: Iterable[tuple[str, Record]]) -> list[tuple[str, Path]]:
    records = list(of)
    images = [(f"{split}/{record.name}", record.image) for split, record in records]
    masks = [(f"{s}/{r.name} ({labels} labels)", path) for s, r in records for labels, path in r.masks.items()]
    return [*images, *masks]
