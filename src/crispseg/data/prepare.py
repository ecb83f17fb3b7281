"""From archives to the house's one prepared layout: images/, masks/, masks_eroded/, split.csv, dataset.json.

First everything is checked and all problems are told at once; then file after file is written aside and renamed,
and noted in a journal, so that an interrupted run continues where it stopped. dataset.json is written last.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import io
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from crispseg import config as configs
from crispseg.data import known
from crispseg.data.classes import IGNORE, ClassTable
from crispseg.data.images import Array, Header, read_header, read_image
from crispseg.data.labels import LabelError, Mask, Unknown, histogram, read_labels
from crispseg.data.manifest import (
    FOLDERS,
    JOURNAL,
    MANIFEST,
    FileFacts,
    ImageEntry,
    band_sums,
    check_entry,
    read_manifest,
)
from crispseg.data.plan import DatasetPlan, Item, Wanted
from crispseg.data.protocol import SPLITS, Protocol, get_protocol, list_protocols
from crispseg.data.sources import Entry, scan
from crispseg.errors import UserError, unknown
from crispseg.files import explaining, refuse_remote, replacing, write_json, write_text
from crispseg.outputs import check_existing, only_one
from crispseg.reading import LARGEST_JSON, parse_json, read_text

DATASETS = ("potsdam", "vaihingen", "loveda")
_SHOWN = 40  # problems listed before "and N more"

Track = Callable[[Iterable[Item], str, int], Iterator[Item]]  # wraps a loop to show its progress


@dataclasses.dataclass(frozen=True)
class Choices:
    """What the user may choose; part of a finished file's signature, so other choices write it anew."""

    labels: Wanted = "both"
    unknown_colours: Unknown = "error"
    colour_tolerance: int = 0
    allow_missing: bool = False
    images: str = "auto"  # of Potsdam: rgb, irrg or rgbir


def make_plan(dataset: str, source: str | Path, choices: Choices | None = None) -> DatasetPlan:
    """Look through `source` for the data set's files."""
    if dataset not in DATASETS:
        raise unknown("data set", dataset, DATASETS)
    choices = choices or Choices()
    found = scan(source)
    room = importlib.import_module(f"crispseg.data.{dataset}")
    if choices.images == "auto":
        plan = cast(DatasetPlan, room.plan(found.entries, choices.labels))
    elif dataset == "potsdam":
        plan = cast(DatasetPlan, room.plan(found.entries, choices.labels, choices.images))
    else:
        raise UserError(f"--images is for Potsdam, which comes in several compositions; {dataset} has one")
    plan.problems += found.problems
    if not any(item.image for item in plan.items):
        raise UserError(f"nothing of {dataset} was found under {source}: {_listed([*plan.missing, *found.problems])}")
    if choices.allow_missing:
        plan.items = [item for item in plan.items if item.image and (item.masks or item.name.startswith("test_"))]
        plan.remarks += plan.missing
        plan.missing = []
    return plan


def check(plan: DatasetPlan, track: Track | None = None) -> None:
    """Refuse a plan with anything missing, unreadable or of the wrong size; all of it in one message."""
    problems = [*plan.missing, *plan.problems]
    sizes: set[tuple[int, int]] = set()
    for item in _tracked(track, plan.items, "checking", len(plan.items)):
        problems += list(_item_problems(item, plan, sizes))
    if problems:
        raise UserError(f"{plan.dataset} is not complete: {_listed(problems)}")
    if plan.size and sizes != {(plan.size, plan.size)}:
        found = ", ".join(f"{width} x {height}" for width, height in sorted(sizes)[:5])
        plan.remarks.append(f"images are {found} px; the published ones are {plan.size} x {plan.size} px")


def _item_problems(item: Item, plan: DatasetPlan, sizes: set[tuple[int, int]]) -> Iterator[str]:
    if item.image is None:
        return
    try:
        image = _header(item.image)
        sizes.add((image.width, image.height))
        if image.bands != len(plan.bands):
            yield f"{item.image.path} has {image.bands} bands, expected {len(plan.bands)} ({', '.join(plan.bands)})"
    except UserError as error:
        yield str(error)
        return
    for entry in item.masks.values():
        try:
            mask = _header(entry)
        except UserError as error:
            yield str(error)
            continue
        if (mask.width, mask.height) != (image.width, image.height):
            yield (
                f"{entry.path} is {mask.width} x {mask.height} px, "
                f"but its image {item.image.path.name} is {image.width} x {image.height} px"
            )


def _header(entry: Entry) -> Header:
    return read_header(entry.open(), str(entry.path))


def _listed(problems: list[str]) -> str:
    more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
    shown = problems[:_SHOWN] + more
    return shown[0] if len(shown) == 1 else "".join(f"\n  - {line}" for line in shown)


def prepare(
    plan: DatasetPlan,
    out: str | Path,
    choices: Choices | None = None,
    track: Track | None = None,
    existing: str = "refuse",
) -> dict[str, Any]:
    """Write the prepared folder and give back its manifest; finished files of an earlier run are kept.

    Files that no earlier run wrote are refused, unless `existing` is replace.
    """
    out, choices = Path(out), choices or Choices()
    refuse_remote(out)
    _make_folder(out)
    with only_one(out, "preparing"):
        journal = _Journal(out, plan.dataset, plan.layout)
        if journal.is_new:
            check_existing(_files_of(plan, out), existing)
        journal.begin()
        problems, renewed = [], []
        for item in _tracked(track, plan.items, "writing", len(plan.items)):
            signature = _signature(item, choices)
            if journal.finished(item.name, signature):
                continue
            if item.name in journal.entries and journal.entries[item.name]["signature"] != signature:
                renewed.append(item.name)
            try:
                journal.add(item.name, signature, _write_item(item, plan, out, choices))
            except LabelError as error:  # the rest may still be right, and all are told at once
                problems.append(str(error))
        if renewed:
            names = ", ".join(renewed[:5]) + (", ..." if len(renewed) > 5 else "")
            plan.remarks.append(f"{len(renewed)} were written anew, as their sources or the choices changed: {names}")
        if problems:
            hint = (
                "; the files that were right are kept. Look at the labels; or, knowing what you do, "
                "map colours that lie near a class colour to it with --colour-tolerance N, "
                "or ignore such pixels with --unknown-colours ignore"
            )
            raise UserError(f"{plan.dataset}: {_listed(problems)}{hint}")
        return _finish(plan, out, choices, journal)


def _files_of(plan: DatasetPlan, out: Path) -> list[Path]:
    images = [out / "images" / f"{item.name}.png" for item in plan.items]
    masks = [out / FOLDERS[variant] / f"{item.name}.png" for item in plan.items for variant in item.masks]
    return [*images, *masks, out / "split.csv"]


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}; choose another --out") from error


def _signature(item: Item, choices: Choices) -> str:
    sources = [(role, str(e.path), e.stamp()) for role, e in [("image", item.image), *item.masks.items()] if e]
    options = (choices.unknown_colours, choices.colour_tolerance)
    return hashlib.sha256(repr((sources, options)).encode()).hexdigest()[:16]


def _write_item(item: Item, plan: DatasetPlan, out: Path, choices: Choices) -> dict[str, Any]:
    """One image and its masks; what the manifest will say of them."""
    assert item.image is not None
    source = item.image.open()
    image = read_image(source, str(item.image.path))
    data = source if isinstance(source, bytes) else source.read_bytes()
    if not data.startswith(b"\x89PNG"):
        data = _png(image)
    files = {f"images/{item.name}.png": _write(out / "images" / f"{item.name}.png", data)}
    labels: dict[str, Any] = {}
    for variant, entry in item.masks.items():
        mask, mended = read_labels(
            entry.open(),
            plan.table,
            str(entry.path),
            unknown=choices.unknown_colours,
            tolerance=choices.colour_tolerance,
        )
        if plan.black_is_padding:
            _ignore_padding(mask, image)
        path = f"{FOLDERS[variant]}/{item.name}.png"
        files[path] = _write(out / path, _png(mask, known.TABLES[plan.dataset]))
        labels[variant] = {"file": path, "histogram": histogram(mask, len(plan.table.names)), "mended": mended}
    return {
        "name": item.name,
        "image": f"images/{item.name}.png",
        "width": image.shape[1],
        "height": image.shape[0],
        "bands": image.shape[2],
        "dtype": str(image.dtype),
        "sums": band_sums(image),
        "labels": labels,
        "files": files,
    }


def _ignore_padding(mask: Mask, image: Array) -> None:
    """Ignore the black rows and columns that a foreign tool has put at the top and left of a patch."""
    black = (image == 0).all(axis=-1)
    rows, columns = black.all(axis=1), black.all(axis=0)
    top = len(rows) if rows.all() else int(rows.argmin())
    left = len(columns) if columns.all() else int(columns.argmin())
    mask[:top], mask[:, :left] = IGNORE, IGNORE


def _png(array: Array, table: ClassTable | None = None) -> bytes:
    """Compressed lightly: tiles are large. Masks carry their classes' colours, so that any viewer shows them."""
    from PIL import Image

    picture = Image.fromarray(array)
    if table is not None:
        colours = bytearray(768)
        for index, colour in enumerate(table.palette):
            colours[3 * index : 3 * index + 3] = bytes(colour)
        picture.putpalette(bytes(colours))
    buffer = io.BytesIO()
    picture.save(buffer, "png", compress_level=1 if table is None else 6)
    return buffer.getvalue()


def _write(path: Path, data: bytes) -> dict[str, Any]:
    with replacing(path) as aside:
        aside.write_bytes(data)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


class _Journal:
    """What is finished: from the manifest of a complete run, and from the lines of one that was interrupted."""

    def __init__(self, out: Path, dataset: str, layout: str) -> None:
        self._out, self._path, self._kind = out, out / JOURNAL, f"{dataset} in the {layout} layout"
        self._classes = len(known.TABLES[dataset].names)
        self.entries: dict[str, ImageEntry] = {}
        manifest = read_manifest(out)
        if manifest:
            self._refuse_other(f"{manifest.get('dataset')} in the {manifest.get('layout')} layout")
            for listed in manifest.get("images", []):
                self._take(listed)
        for line in self._lines():
            if isinstance(line, dict) and "kind" in line:
                self._refuse_other(str(line["kind"]))
            else:
                self._take(line)

    def _take(self, line: Any) -> None:
        with contextlib.suppress(UserError):  # damaged: its image is made again
            entry: ImageEntry = configs.checked(ImageEntry, line, "a line")
            check_entry(entry)
            if any(len(label["histogram"]) != self._classes for label in entry["labels"].values()):
                return
            self.entries[entry["name"]] = entry

    def _refuse_other(self, kind: str) -> None:
        if kind != self._kind:
            raise UserError(f"{self._out} already holds {kind}, this is {self._kind}; choose another --out")

    def _lines(self) -> Iterator[Any]:
        if self._path.exists():
            for line in read_text(self._path, LARGEST_JSON, "journal").splitlines():
                with contextlib.suppress(UserError):  # the line being written when the run was killed
                    yield parse_json(line, str(self._path))

    def finished(self, name: str, signature: str) -> bool:
        entry = self.entries.get(name)
        if entry is None or entry["signature"] != signature:
            return False
        return all(_matches(self._out / path, facts) for path, facts in entry["files"].items())

    @property
    def is_new(self) -> bool:
        """Whether no run has written here."""
        return not self._path.exists() and not (self._out / MANIFEST).exists()

    def begin(self) -> None:
        """Before the first file is written: what lies here from now on is ours."""
        if not self._path.exists():
            self._append({"kind": self._kind})

    def add(self, name: str, signature: str, entry: dict[str, Any]) -> None:
        self.entries[name] = cast(ImageEntry, {"signature": signature, **entry})
        self._append(self.entries[name])

    def _append(self, line: Any) -> None:
        if self._path.is_symlink():
            raise UserError(f"{self._path} is a link, not a journal of crisp; remove it, or choose another --out")
        with explaining(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        self._path.unlink(missing_ok=True)


def _matches(path: Path, facts: FileFacts) -> bool:
    try:
        if path.stat().st_size != facts["bytes"]:
            return False
        return hashlib.sha256(path.read_bytes()).hexdigest() == facts["sha256"]
    except OSError:
        return False


def _finish(plan: DatasetPlan, out: Path, choices: Choices, journal: _Journal) -> dict[str, Any]:
    entries = [journal.entries[item.name] for item in plan.items]
    known_here = [get_protocol(name) for name in list_protocols(plan.dataset)]
    protocols = [protocol for protocol in known_here if _usable(protocol, entries)]
    default = (protocols or known_here)[0]
    table = known.TABLES[plan.dataset]
    rows = [("name", "split")]
    for entry in entries:
        split = next((s for s in ("test", "val", "train") if default.holds(s, entry["name"])), "")
        rows.append((entry["name"], split or ("test" if entry["name"].startswith("test_") else "unused")))
    manifest = {
        "format": 1,
        "dataset": plan.dataset,
        "layout": plan.layout,
        "classes": ClassTable(table.names, table.colours).to_rows(),
        "labels": {v: FOLDERS[v] for v in FOLDERS if any(v in entry["labels"] for entry in entries)},
        "bands": list(plan.bands),
        "resolution": default.resolution,
        "protocols": {protocol.name: protocol.hash for protocol in protocols},
        "choices": dataclasses.asdict(choices),
        "histogram": {v: _total(entries, v, len(table.names)) for v in FOLDERS},
        "images": entries,
    }
    write_text(out / "split.csv", "".join(f"{name},{split}\n" for name, split in rows))
    write_json(out / MANIFEST, manifest)
    journal.close()
    return manifest


def _usable(protocol: Protocol, entries: list[ImageEntry]) -> bool:
    """Whether every tile of the protocol is there with the labels it wants."""
    for split in SPLITS:
        variant = protocol.labels(split)
        labelled = {entry["name"] for entry in entries if variant in entry["labels"]}
        held = [entry["name"] for entry in entries if protocol.holds(split, entry["name"])]
        if not all(name in labelled for name in held) or protocol.missing(split, held):
            return False
    return True


def _total(entries: list[ImageEntry], variant: str, classes: int) -> list[int]:
    counts = [entry["labels"][variant]["histogram"] for entry in entries if variant in entry["labels"]]
    return [sum(column) for column in zip(*counts, strict=True)] or [0] * classes


def _tracked(track: Track | None, items: list[Item], what: str, total: int) -> Iterable[Item]:
    return items if track is None else track(items, what, total)
