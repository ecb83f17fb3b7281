"""The folder that `crisp prepare vector` writes, as a whole or not at all, and never over anybody else's files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from crispseg.data.manifest import MANIFEST, read_manifest
from crispseg.errors import UserError
from crispseg.files import explaining, flush_to_disk
from crispseg.outputs import claiming, there

PICTURE, CLASSES = "labels.png", "classes.csv"
LAYOUT = "vector"


def check_replaceable(target: Path, existing: str, inputs: Sequence[str]) -> None:
    """Refuse a folder that holds anything, or, if it may be replaced, anything but what was written here before."""
    if not there(target) or (target.is_dir() and not target.is_symlink() and not any(target.iterdir())):
        return
    if existing != "replace":
        raise UserError(
            f"{target} is there already and not empty; choose another --out, remove it, or say --existing replace"
        )
    if not target.is_dir() or target.is_symlink():
        raise UserError(f"{target} is no folder; choose another --out, or remove it")
    inside = [name for name in inputs if name and target.resolve() in Path(name).resolve().parents]
    if inside:
        raise UserError(f"{inside[0]} is read and lies in {target}, which would be replaced; choose another --out")
    foreign = sorted(_found(target) - _ours(target))
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise UserError(
            f"{target} holds {foreign[0]}{more}, which `crisp prepare vector` did not write; move it away, or choose "
            "another --out"
        )


@contextlib.contextmanager
def making_folder(target: Path, existing: str, inputs: Sequence[str]) -> Iterator[Path]:
    """A folder to fill, which takes the target's name when the block ends without error; one run at a time."""
    check_replaceable(target, existing, inputs)
    with claiming([target]) as places:
        aside = places[target].making(target.name)
        try:
            with explaining(target):
                yield aside
                check_replaceable(target, existing, inputs)  # somebody may have put a file there meanwhile
                if there(target):
                    os.replace(target, places[target].making("replaced"))
                os.replace(aside, target)
                flush_to_disk(target.parent)
        finally:
            places[target].remove()


def _found(folder: Path) -> set[str]:
    """All that is no folder, by its name below this one."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}


def _ours(folder: Path) -> set[str]:
    manifest = read_manifest(folder)
    if manifest.get("layout") != LAYOUT:
        return set()
    chips = [f"{kind}/{entry['name']}.tif" for entry in manifest.get("images", []) for kind in ("images", "masks")]
    return {MANIFEST, PICTURE, CLASSES, *chips, *(f"{name}.aux.xml" for name in chips)}  # the latter by who looks at it
