"""From a STAC file to scenes: an item, the items of a collection or catalogue, or of a search result."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from crispseg.errors import UserError, nearest
from crispseg.geo import store
from crispseg.reading import LARGEST_JSON, parse_json, read_text

_ENDINGS = (".json", ".geojson")
_RASTERS = ("image/tiff", "image/jp2", "image/png", "image/jpeg", "image/vnd.stac.geotiff")
_KEPT = ("datetime", "start_datetime", "end_datetime", "platform", "instruments", "constellation", "gsd")
_MOST_ITEMS = 100_000


@dataclasses.dataclass(frozen=True)
class SourceItem:
    """What a map keeps of the item its scene came from."""

    id: str
    href: str = ""  # where the item itself lies, if anywhere
    properties: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ItemScene:
    path: str  # of the asset
    name: str  # for the files made from it
    item: SourceItem


def is_catalogue(word: str) -> bool:
    return word.partition("?")[0].lower().endswith(_ENDINGS)


def need_pystac() -> Any:
    try:
        import pystac
    except ImportError:
        raise UserError("STAC items need pystac: pip install 'crispseg[stac]'") from None
    return pystac


def read_catalogue(word: str, asset: str = "") -> list[ItemScene]:
    """One scene for each item; `asset` names the one to read, which may be left out where there is but one raster."""
    values = _read(word)
    word = _with_folder(word)
    kind = values.get("type") if isinstance(values, dict) else None
    pystac = need_pystac()
    try:
        if kind == "Feature":
            items: Iterable[Any] = [pystac.Item.from_dict(values, href=word, preserve_dict=False)]
        elif kind == "FeatureCollection":
            items = [pystac.Item.from_dict(item, preserve_dict=False) for item in values.get("features", [])]
        elif kind in ("Collection", "Catalog"):
            items = _linked(pystac, word, values)
        else:
            raise UserError(f"{word} is no STAC item, collection or search result (its type is {kind!r})")
        return _scenes(word, items, asset)
    except (pystac.STACError, pystac.STACTypeError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{word} cannot be read as STAC: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if isinstance(error.__cause__, UserError):  # of a file that a catalogue links to
        return str(error.__cause__)
    lacks = "it lacks " * isinstance(error, KeyError)
    return lacks + " ".join(str(error).split())


def _with_folder(word: str) -> str:
    """Beside a bare `search.json` pystac takes names for those of the root; and a map's item may lie elsewhere."""
    return word if store.is_remote(word) else os.path.abspath(word.removeprefix("file://"))


def _scenes(word: str, items: Iterable[Any], asset: str) -> list[ItemScene]:
    scenes: list[ItemScene] = []
    for item in items:
        if len(scenes) == _MOST_ITEMS:
            raise UserError(f"{word} has more than {_MOST_ITEMS} items; split it")
        where = item.get_self_href() or word
        path = _absolute(_asset(item, asset).href, where)
        href = where if item.get_self_href() else ""
        kept = {key: item.properties[key] for key in _KEPT if item.properties.get(key) is not None}
        scenes.append(ItemScene(path, _file_name(item.id), SourceItem(item.id, href, kept)))
    if not scenes:
        raise UserError(f"{word} has no items")
    return scenes


def _asset(item: Any, wanted: str) -> Any:
    there = item.assets
    if wanted:
        if wanted not in there:
            hint = nearest(wanted, there) or f"; it has {', '.join(there) or 'none'}"
            raise UserError(f"item {item.id} has no asset {wanted!r}{hint}")
        return there[wanted]
    rasters = {key: a for key, a in there.items() if (a.media_type or "").partition(";")[0].strip() in _RASTERS}
    data = {key: a for key, a in rasters.items() if not {"thumbnail", "overview"} & set(a.roles or ())}
    if len(data) != 1:
        raise UserError(f"item {item.id} has the assets {', '.join(there) or 'none'}; choose one with --asset")
    return next(iter(data.values()))


def _absolute(href: str, where: str) -> str:
    from pystac.utils import make_absolute_href

    path = make_absolute_href(href.removeprefix("file://"), where.removeprefix("file://"), start_is_dir=False)
    if "://" in path and not store.is_remote(path):
        raise UserError(f"{where} names {href}: only s3://, gs://, az:// and https:// are understood")
    if store.is_remote(where) and not store.is_remote(path):
        raise UserError(f"{where} names {href}, a file of this machine; a catalogue from elsewhere may not")
    return str(path)


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name).strip("._") or "item"


def _linked(pystac: Any, word: str, values: dict[str, Any]) -> Iterator[Any]:
    """The items that a collection or catalogue links to, through others below it."""

    class Reader(pystac.StacIO):  # type: ignore[misc]
        def read_text(self, source: Any, *_: Any, **__: Any) -> str:
            href = source if isinstance(source, str) else source.get_absolute_href()
            if store.is_remote(word) and not store.is_remote(href):
                raise UserError(f"{word} names {href}, a file of this machine; a catalogue from elsewhere may not")
            return _text(href)

        def write_text(self, dest: Any, *_: Any, **__: Any) -> None:
            raise UserError(f"{dest} is not written: catalogues are only read")

    kind = pystac.Collection if values["type"] == "Collection" else pystac.Catalog
    catalogue = kind.from_dict(values, href=word, preserve_dict=False)
    catalogue._stac_io = Reader()
    return catalogue.get_items(recursive=True)


def _read(word: str) -> Any:
    return parse_json(_text(word), word)


def _text(href: str) -> str:
    if not store.is_remote(href):
        return read_text(href.removeprefix("file://"), LARGEST_JSON)
    try:
        return store.read_bytes(href, LARGEST_JSON).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{href} is no text in UTF-8") from error
