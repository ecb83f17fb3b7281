"""What other programs note beside a raster when they show it: overviews and statistics, which change no pixel."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from crispseg.fingerprint import stamps

_LARGEST = 1 << 20  # bytes of notes that are looked into


def stamps_of_pixels(files: Iterable[str]) -> dict[str, str]:
    """Stamps of the files that a raster's pixels come from, which stay the same while somebody looks at it in a GIS."""
    found = stamps(file for file in files if not file.lower().endswith(".ovr"))
    for name in [name for name in found if name.lower().endswith(".aux.xml")]:
        said = _beside_statistics(Path(name))
        if said == "":
            del found[name]
        elif said is not None:
            found[name] = hashlib.blake2b(said.encode(), digest_size=16).hexdigest()
    return found


def _beside_statistics(path: Path) -> str | None:
    """What GDAL's notes say but for statistics and histograms; None where they cannot be read."""
    try:
        text = path.read_bytes()
        if len(text) > _LARGEST or b"<!" in text:
            return None
        root = ElementTree.fromstring(text)
    except (OSError, ElementTree.ParseError, ValueError, LookupError, RecursionError):
        return None
    _prune(root)
    return ElementTree.canonicalize(ElementTree.tostring(root), strip_text=True) if len(root) else ""


def _prune(element: ElementTree.Element) -> None:
    """Leave out the statistics, and the elements that only held them."""
    for child in list(element):
        held = len(child)
        _prune(child)
        statistic = child.tag == "Histograms" or child.get("key", "").startswith("STATISTICS_")
        if statistic or (held and not len(child)):
            element.remove(child)
