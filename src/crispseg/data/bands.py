"""What the bands of a folder's images are called: the prepared folder knows, whatever a config takes them to be."""

from __future__ import annotations

from pathlib import Path

from crispseg.data import known
from crispseg.data.folder import Folder
from crispseg.data.manifest import MANIFEST, read_manifest
from crispseg.errors import UserError

Names = tuple[str, ...]


def named_bands(folder: Folder) -> Names:
    """As dataset.json has them; none where it does not name every band of the images."""
    names = tuple(read_manifest(Path(folder.root)).get("bands", ()))
    return names if len(names) == folder.bands else ()


def settled_bands(folder: Folder, wanted: Names | None) -> Names:
    """The names for a training that wants bands of these names (or of any): those that the folder knows, else the
    wanted ones."""
    names = named_bands(folder)
    return true_bands(folder.root, wanted) if names and wanted else names or wanted or ()


def true_bands(root: str | Path, wanted: Names) -> Names:
    """What dataset.json makes of the names that a config has for the bands. The usual ones of a known data set are what
    its config says without having looked, and give way; others that the folder contradicts are a mistake."""
    manifest = read_manifest(Path(root))
    names = tuple(manifest.get("bands", ()))
    if not names or wanted == names:
        return wanted
    if wanted == known.BANDS.get(manifest.get("dataset", "")):
        return names
    raise UserError(
        f"data.bands says {', '.join(wanted)}, but {Path(root) / MANIFEST} says {', '.join(names)}; leave data.bands "
        "out, or correct `bands` in that file if it is wrong"
    )


def check_same_bands(folder: Folder, other: Folder) -> None:
    """Refuse two folders that are to be learnt from together and call their bands differently."""
    ours, theirs = named_bands(folder), named_bands(other)
    if ours and theirs and ours != theirs:
        raise UserError(
            f"the bands of {other.root} are {', '.join(theirs)}, those of {folder.root} are {', '.join(ours)}: they "
            "cannot train one model together"
        )
