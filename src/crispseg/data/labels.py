"""Turning the values or colours of a mask file into class ids from 0, with 255 ignored.

Colours are matched exactly. A colour or value that no table entry explains is an error that says how many
pixels have it and where the first one is; it never becomes a class by accident.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from crispseg.data.classes import IGNORE, ClassTable, Colour
from crispseg.data.images import read_mask, read_palette
from crispseg.errors import UserError

Mask = NDArray[np.uint8]  # (H, W), class ids from 0, IGNORE where nothing is to be learnt or scored
Unknown = Literal["error", "ignore"]


class LabelError(UserError):
    """A colour or value that the class table does not explain."""


def read_labels(
    source: Path | bytes,
    table: ClassTable,
    name: str | None = None,
    *,
    unknown: Unknown = "error",
    tolerance: int = 0,
) -> tuple[Mask, int]:
    """A mask file as class ids; see `encode`. A palette picture's colours count, not the order they are stored in,
    where the table knows classes by colour alone."""
    array = read_table_mask(source, table, name)
    return encode(array, table, name or str(source), unknown=unknown, tolerance=tolerance)


def read_table_mask(source: Path | bytes, table: ClassTable, name: str | None = None) -> NDArray[Any]:
    """A mask file's array as the table wants it: colours of a palette picture, or its indices."""
    array = read_mask(source, name, colours=table.by_colour)
    if table.colours and table.values and array.ndim == 2 and array.dtype == np.uint8:
        palette = read_palette(source, name)
        if palette is not None:
            _refuse_other_order(array, palette, table, name or str(source))
    return array


def _refuse_other_order(array: NDArray[Any], palette: NDArray[np.uint8], table: ClassTable, where: str) -> None:
    """A palette of the table's own colours whose order is another than its ids: one of the two is wrong."""
    ids = dict(zip(table.colours, table.file_values, strict=True))
    colours = [tuple(colour) for colour in palette.tolist()]
    if all(value < len(colours) and colours[value] == colour for colour, value in ids.items()):
        return  # the usual case, in which nothing need be counted
    learnt = [value for value in _count_values(array) if value not in table.ignored_values]
    shown = {value: colours[value] for value in learnt if value < len(colours)}
    meant = {v: ids[colour] for v, colour in shown.items() if colour in ids}
    strange = any(colour not in (*ids, *table.ignored_colours) for colour in shown.values())
    other = next((v for v, own in meant.items() if own != v), None)
    if len(shown) > 1 and not strange and other is not None:
        raise LabelError(
            f"{where}: value {other} is shown in the colour {','.join(map(str, shown[other]))}, which the class table "
            f"gives to id {meant[other]}; take the column id out of it if the colours are right, or else r, g, b"
        )


def encode(
    array: NDArray[Any], table: ClassTable, where: str, *, unknown: Unknown = "error", tolerance: int = 0
) -> tuple[Mask, int]:
    """A mask file's array, (H, W) values or (H, W, 3 or 4) colours, as class ids; and the count of mended pixels.

    Mended are the pixels whose colour lay within `tolerance` of a table colour in every channel, and, with
    unknown="ignore", those that no entry explains. Both are off unless asked for.
    """
    array = _from_bits(array, table) if array.dtype == np.bool_ else array
    one_band = array.ndim == 2 or array.shape[2] == 1
    if one_band and table.by_colour:
        array = _as_greys(array.reshape(array.shape[:2]), table, where)
    elif one_band:
        return _encode_values(array.reshape(array.shape[:2]), table, where, unknown)
    if array.shape[2] not in (3, 4):
        raise UserError(f"{where} has {array.shape[2]} bands; a mask has one (ids) or three (colours)")
    colours = array[..., :3]  # an alpha channel says nothing about classes
    if not table.colours:
        if (colours == colours[..., :1]).all():
            return _encode_values(colours[..., 0], table, where, unknown)
        raise UserError(f"{where} is a colour mask, but the class table has no colours; add r, g, b columns")
    if colours.dtype != np.uint8:
        raise UserError(f"{where} is a colour mask of type {colours.dtype}; colour masks must be 8 bit")
    return _encode_colours(colours, table, where, unknown, tolerance)


def _from_bits(bits: NDArray[np.bool_], table: ClassTable) -> NDArray[np.uint8]:
    """A picture of one bit as values: on is 1 where the table gives a meaning to 1, else 255, as in a picture."""
    on = 1 if not table.by_colour and 1 in (*table.file_values, *table.ignored_values) else 255
    return bits * np.uint8(on)


def _as_greys(array: NDArray[Any], table: ClassTable, where: str) -> NDArray[np.uint8]:
    """A mask of one band as the colours (v, v, v), for a table that knows classes by colour alone."""
    greys = {r for r, g, b in (*table.colours, *table.ignored_colours) if r == g == b}
    values = np.unique(array)
    if not set(values.tolist()) <= greys:
        raise LabelError(
            f"{where} has one band, with values {_some(values)}, but the class table gives colours and no ids, and "
            f"these are not its greys; add the column id with the value of each class{_lossy(where)}"
        )
    return np.repeat(array[..., None].astype(np.uint8), 3, axis=-1)


def _some(values: NDArray[Any], most: int = 8) -> str:
    return ", ".join(f"{value:g}" for value in values[:most]) + (", ..." if len(values) > most else "")


def _encode_values(array: NDArray[Any], table: ClassTable, where: str, unknown: Unknown) -> tuple[Mask, int]:
    check_whole(array, where)
    found = _count_values(array)
    meaning = {value: index for index, value in enumerate(table.file_values)}
    meaning.update({value: IGNORE for value in table.ignored_values if value not in meaning})
    strangers = {value: count for value, count in found.items() if value not in meaning}
    if strangers and unknown == "error":
        value, count = max(strangers.items(), key=lambda item: item[1])
        row, column = np.argwhere(array == value)[0]
        raise LabelError(
            f"{where}: class id {value} is out of range: {count} pixels, the first at row {row}, "
            f"column {column}; known ids are {_listed(table.file_values)}, ignored "
            f"{_listed(table.ignored_values)}{_lossy(where)}"
        )
    result = np.full(array.shape, IGNORE, np.uint8)
    for value in found:
        if meaning.get(value, IGNORE) != IGNORE:
            result[array == value] = meaning[value]
    return result, sum(strangers.values())


_SLICE = 1 << 24  # pixels


def _count_values(array: NDArray[Any]) -> dict[int, int]:
    """Pixels by value; bytes are counted without being sorted, which takes seconds for a large mask."""
    if array.dtype == np.uint8:
        flat, counts = array.reshape(-1), np.zeros(256, np.int64)
        for start in range(0, flat.size, _SLICE):  # numpy counts in 64-bit copies
            counts += np.bincount(flat[start : start + _SLICE], minlength=256)
        return {int(value): int(counts[value]) for value in counts.nonzero()[0]}
    return {int(value): int(count) for value, count in zip(*np.unique(array, return_counts=True), strict=True)}


def check_whole(array: NDArray[Any], where: str) -> None:
    """Refuse an index mask of anything but whole numbers."""
    if array.dtype.kind not in "fiub":
        raise UserError(f"{where} holds pixels of type {array.dtype}; an index mask holds whole class ids")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise UserError(f"{where} holds NaN or infinity; an index mask holds whole class ids")
    if array.dtype.kind == "f" and not (array == np.rint(array)).all():
        raise UserError(f"{where} holds fractions; an index mask holds whole class ids")


def is_lossy(name: str) -> bool:
    """Whether a mask file is of a kind that blurs what it stores."""
    return name.lower().endswith((".jpg", ".jpeg"))


def _lossy(where: str) -> str:
    return "; jpg blurs masks: save them as png" if is_lossy(where) else ""


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))


_ROWS_AT_ONCE = 512  # a 6000 x 6000 tile is packed in strips, so that memory stays small
_STRANGER = -1


def _encode_colours(
    colours: NDArray[np.uint8], table: ClassTable, where: str, unknown: Unknown, tolerance: int
) -> tuple[Mask, int]:
    known = np.array((*table.colours, *table.ignored_colours), np.uint8)  # (K, 3)
    ids = np.array([*range(len(table.colours)), *[IGNORE] * len(table.ignored_colours)], np.int16)
    order = np.argsort(pack(known))
    known, ids = known[order], ids[order]
    result = np.empty(colours.shape[:2], np.uint8)
    mended, strangers = 0, _Strangers()
    for top in range(0, colours.shape[0], _ROWS_AT_ONCE):
        packed = pack(colours[top : top + _ROWS_AT_ONCE])
        found = _look_up(packed, pack(known), ids)
        if tolerance and (found == _STRANGER).any():
            others, spots = np.unique(packed[found == _STRANGER], return_inverse=True)
            near = _nearest(others, known, ids, tolerance)[spots]
            found[found == _STRANGER] = near
            mended += int((near != _STRANGER).sum())
        strangers.add(packed, found == _STRANGER, top)
        result[top : top + _ROWS_AT_ONCE] = np.where(found == _STRANGER, IGNORE, found)
    if strangers.count and unknown == "error":
        raise LabelError(f"{where}: {strangers.sentence()}{_lossy(where)}")
    return result, mended + strangers.count


def _look_up(packed: NDArray[np.uint32], keys: NDArray[np.uint32], ids: NDArray[np.int16]) -> NDArray[np.int16]:
    """The id of each packed colour among the sorted keys, or _STRANGER."""
    spots = np.searchsorted(keys, packed).clip(max=len(keys) - 1)
    return np.where(keys[spots] == packed, ids[spots], np.int16(_STRANGER))


def pack(colours: NDArray[np.uint8]) -> NDArray[np.uint32]:
    wide = colours.astype(np.uint32)
    packed: NDArray[np.uint32] = (wide[..., 0] << np.uint32(16)) | (wide[..., 1] << np.uint32(8)) | wide[..., 2]
    return packed


def unpack(packed: int) -> Colour:
    return (packed >> 16, packed >> 8 & 255, packed & 255)


def _nearest(
    packed: NDArray[np.uint32], known: NDArray[np.uint8], ids: NDArray[np.int16], tolerance: int
) -> NDArray[np.int16]:
    """The id of the known colour within `tolerance` of each of these in every channel, or _STRANGER."""
    result = np.full(len(packed), _STRANGER, np.int16)
    for start in range(0, len(packed), 100_000):
        part = packed[start : start + 100_000]
        own = np.stack([part >> 16, part >> 8 & 255, part & 255], axis=-1).astype(np.int16)  # (N, 3)
        apart = np.abs(own[:, None] - known.astype(np.int16)).max(axis=-1)  # (N, K)
        alone = (apart == apart.min(axis=1, keepdims=True)).sum(axis=1) == 1  # as near to two colours: no guessing
        near = (apart.min(axis=1) <= tolerance) & alone
        result[start : start + 100_000][near] = ids[apart.argmin(axis=1)[near]]
    return result


class _Strangers:
    """Pixels whose colour no entry explains: how many, and the first."""

    def __init__(self) -> None:
        self.count = 0
        self.first: tuple[int, int] = (0, 0)
        self.colour = 0

    def add(self, packed: NDArray[np.uint32], where: NDArray[np.bool_], top: int) -> None:
        if not where.any():
            return
        if not self.count:
            row, column = np.argwhere(where)[0]
            self.first, self.colour = (top + int(row), int(column)), int(packed[row, column])
        self.count += int(where.sum())

    def sentence(self) -> str:
        return (
            f"{self.count} pixels have a colour that is not in the class table, the first at "
            f"row {self.first[0]}, column {self.first[1]}: {','.join(map(str, unpack(self.colour)))}"
        )


def histogram(mask: Mask, classes: int) -> list[int]:
    """Pixels per class id; ignored pixels are not counted."""
    counts: list[int] = np.bincount(mask.reshape(-1), minlength=256)[:classes].tolist()
    return counts
