"""Damaging files: byte by byte, and by the structure of what they hold. All chance comes from the given generator."""

from __future__ import annotations

import copy
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

Mutation = Callable[[Random, bytes], bytes]

# Values that nobody expects where they are put.
STRANGE: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 255, 256, 10**6, 10**12, 2**63, -(2**63), 10**30, 10**400, 0.5, -0.0, 1e308,
    float("nan"), float("inf"), float("-inf"), "", " ", "x", "1", "nan", "1e999", "[/x]", "=cmd|' /C calc'!A0", "\0",
    "../../../etc/passwd", "/etc/passwd", "/dev/zero", "\ud800", "\N{SUPERSCRIPT TWO}", "é" * 300, "A" * 200_000, [],
    {}, [[]], [None], [1, 2, 3], {"": None}, {"a": 1}, {"format": 99}, [[1, 2, 3]] * 3, list(range(3000)),
    "2020-99-99", "!!int x", "crisp_nano", "train", "val",
)  # fmt: skip
_TOKENS = (
    b"\0", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80", b"{", b"}", b"[", b"]" * 50, b'"', b":", b",",
    b"\n", b"\r\n", b"-", b"1e999", b"99999999999999999999", b"nan", b"null", b"&a [*a,*a]", b"<<: *a",
    b"!!python/object",
    b"IHDR", b"IDAT", b"PK\x01\x02", b"PK\x05\x06", b"II*\0", b"\xef\xbb\xbf", b"\xc3\x28", b"'" * 9, b"A" * 140_000,
)  # fmt: skip


def damage_bytes(random: Random, data: bytes) -> bytes:
    """A few flips, cuts, insertions and repetitions."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4, 16))):
        at = random.randrange(len(changed) + 1)
        many = random.choice((1, 2, 4, 8, 64, 1024))
        kind = random.randrange(7)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << random.randrange(8)
        elif kind == 1 and at < len(changed):
            changed[at] = random.randrange(256)
        elif kind == 2:
            del changed[at : at + many]
        elif kind == 3:
            changed[at:at] = random.choice(_TOKENS)
        elif kind == 4:
            changed[at:at] = random.randbytes(many)
        elif kind == 5:
            changed[at:at] = changed[max(0, at - many) : at]
        else:
            numbers = (0, 1, 255, 65535, 2**31 - 1, 2**31, 2**32 - 1)
            changed[at : at + 4] = struct.pack(random.choice("<>") + "I", random.choice(numbers))
    return bytes(changed)


def cut(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def nothing_or_noise(random: Random, data: bytes) -> bytes:
    return random.choice((b"", b"\0" * 100, b" ", b"\n", b"null", b"[]", b"{}", random.randbytes(300)))


def damage_tree(random: Random, tree: Any) -> Any:
    """Some places of nested lists and mappings changed: replaced, dropped, doubled, renamed, buried."""
    tree = copy.deepcopy(tree)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        tree = _damage_one(random, tree)
    return tree


def _damage_one(random: Random, tree: Any) -> Any:
    places = list(_places(tree))
    if not places:
        return copy.deepcopy(random.choice(STRANGE))
    parent, key = random.choice(places)
    kind = random.randrange(9)
    if kind <= 3:
        parent[key] = copy.deepcopy(random.choice(STRANGE))
    elif kind == 4:
        del parent[key]
    elif kind == 5:
        for _ in range(random.choice((1, 3, 50, 70, 200))):
            parent[key] = [parent[key]] if random.random() < 0.5 else {"a": parent[key]}
    elif kind == 6 and isinstance(parent, dict):
        parent[str(random.choice(STRANGE))] = parent.pop(key)
    elif kind == 7:
        other, other_key = random.choice(places)
        parent[key] = copy.deepcopy(other[other_key]) if other_key in _keys(other) else None
    elif isinstance(parent, list):
        parent.extend([parent[key]] * random.choice((1, 10, 300)))
    else:
        parent[key] = _nudged(random, parent[key])
    return tree


def _keys(parent: Any) -> Any:
    return parent if isinstance(parent, dict) else range(len(parent))


def _nudged(random: Random, value: Any) -> Any:
    """A near miss: a number somewhat off, a text somewhat longer."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return [value]
    if isinstance(value, str):
        return value + random.choice(("x", "/", "\0", "-1", ".."))
    return random.choice((-value, value + 1, value - 1, value * 1000, value // 3, str(value)))


def _places(tree: Any, depth: int = 0) -> Any:
    if depth < 12 and isinstance(tree, dict | list):
        for key in list(_keys(tree)):
            yield tree, key
            yield from _places(tree[key], depth + 1)


def damage_json(random: Random, data: bytes) -> bytes:
    return _json(damage_tree(random, json.loads(data)))


def _json(tree: Any) -> bytes:
    try:
        return json.dumps(tree).encode()
    except (RecursionError, ValueError):  # ValueError: an int of more digits than Python prints
        return b'{"a": ' + b"[" * 30_000 + b"]" * 30_000 + b"}"


def damage_lines(random: Random, data: bytes) -> bytes:
    """JSON lines: one of them changed, or two swapped."""
    lines = data.splitlines()
    if not lines:
        return b"[]\n"
    at = random.randrange(len(lines))
    kind = random.randrange(4)
    if kind == 0:
        lines[at] = damage_bytes(random, lines[at])
    elif kind == 1:
        lines.insert(at, random.choice(lines))
    else:
        lines[at] = damage_json(random, lines[at])
    return b"\n".join(lines) + b"\n"


def damage_yaml(random: Random, data: bytes) -> bytes:
    """The tree changed and written as JSON (which is YAML), or a line of text that only YAML knows."""
    import yaml

    if random.random() < 0.6:
        return _json(damage_tree(random, yaml.safe_load(data)))
    lines = data.decode().splitlines()
    at = random.randrange(len(lines) + 1)
    odd = (
        "x: !!int x", "x: !!timestamp y", "seed: 2020-99-99", "base: config.yaml", "base: [1]", "<<: {seed: 1}",
        "seed: 0x_", "a: &a [*a]", "seed: 1:99:99:99", "? [1, 2]\n: 3", "? {a: 1}\n: 3",
        "x: !!python/object:os.system a",
        "a: &a [x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a]\n"
        + "\n".join(f"{chr(99 + i)}: &{chr(99 + i)} [{', '.join(['*' + chr(98 + i)] * 9)}]" for i in range(9)),
        "x: " + "[" * 3000, "- " * 3000 + "x", "x: " + "{a: " * 800, "seed: !!float x", "!!set {a, b}",
        "%YAML 9.9\n---",
        "x: !!binary '@'", "x: !!bool maybe", "\t- x", "seed: .inf", "seed: 1e400", "seed: " + "9" * 5000,
        "--- 1\n--- 2",
    )  # fmt: skip
    return "\n".join([*lines[:at], random.choice(odd), *lines[at:]]).encode()


def damage_csv(random: Random, data: bytes) -> bytes:
    rows = [line.split(",") for line in data.decode().splitlines()] or [[""]]
    row = random.choice(rows)
    at = random.randrange(len(row))
    kind = random.randrange(6)
    if kind == 0:
        row[at] = str(random.choice(STRANGE)).encode("utf-8", "replace").decode()
    elif kind == 1:
        del row[at]
    elif kind == 2:
        row.insert(at, random.choice(("", "x", '"', "'", "=1+1")))
    elif kind == 3:
        rows.append(list(row))
    elif kind == 4:
        rows.insert(0, [])
    else:
        row[at] = '"' + row[at] + random.choice(("\n", '"', "", "\r", "x" * 140_000))
    return "\n".join(",".join(row) for row in rows).encode()


def damage_png(random: Random, data: bytes) -> bytes:
    """One chunk changed, its checksum right again."""
    chunks, at = [], 8
    while at + 8 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        chunks.append([data[at + 4 : at + 8], data[at + 8 : at + 8 + length]])
        at += 12 + length
    chosen = random.choice(chunks)
    if chosen[0] == b"IHDR" and random.random() < 0.8:
        side = random.choice((0, 1, 7, 60_000, 1_000_000, 2**31 - 1, 2**32 - 1))
        fields = bytearray(chosen[1])
        fields[(place := random.choice((0, 4))) : place + 4] = struct.pack(">I", side)
        fields[8 + random.randrange(5)] = random.choice((0, 1, 2, 3, 4, 6, 8, 16, 255))
        chosen[1] = bytes(fields)
    elif chosen[0] == b"IDAT" and random.random() < 0.5:
        chosen[1] = zlib.compress(
            damage_bytes(random, zlib.decompress(b"".join(c[1] for c in chunks if c[0] == b"IDAT")))
        )
    else:
        chosen[1] = damage_bytes(random, chosen[1])
    parts = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    ]
    return data[:8] + b"".join(parts)


def damage_tiff(random: Random, data: bytes) -> bytes:
    """One entry of the first directory changed: its tag, type, count or value."""
    order = "<" if data[:2] == b"II" else ">"
    start = struct.unpack_from(order + "I", data, 4)[0]
    count = struct.unpack_from(order + "H", data, start)[0]
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 3))):
        at = start + 2 + 12 * random.randrange(count)
        numbers = (
            0,
            1,
            2,
            3,
            8,
            16,
            255,
            1000,
            65535,
            10**6,
            2**31 - 1,
            2**32 - 1,
            len(data),
            random.randrange(len(data)),
        )
        kind = random.randrange(4)
        if kind == 0:
            struct.pack_into(
                order + "H", changed, at, random.choice((256, 257, 258, 259, 262, 273, 277, 279, 322, 339))
            )
        elif kind == 1:
            struct.pack_into(order + "H", changed, at + 2, random.randrange(20))
        else:
            struct.pack_into(order + "I", changed, at + (4 if kind == 2 else 8), random.choice(numbers))
    return bytes(changed)


def damage_safetensors(random: Random, data: bytes) -> bytes:
    """The header changed, its length right again."""
    length = int.from_bytes(data[:8], "little")
    header = _json(damage_tree(random, json.loads(data[8 : 8 + length])))
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def damage_zip(random: Random, data: bytes) -> bytes:
    """A member changed and packed again by some method, or one more with an odd name."""
    methods = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
        names = old.namelist()
        chosen = random.choice(names)
        method = random.choice(methods) if random.random() < 0.5 else zipfile.ZIP_STORED
        for name in names:
            content = old.read(name)
            if name == chosen:
                content = damage_bytes(random, content) if random.random() < 0.8 else cut(random, content)
            if random.random() > 0.01:
                new.writestr(name, content, method)
        if random.random() < 0.2:
            new.writestr(
                random.choice(("../x.png", "/x.png", "a\\b.png", "x.zip", "\N{SUPERSCRIPT TWO}.png", "é.png")), b"x"
            )
    made = bytearray(buffer.getvalue())
    if random.random() < 0.4:  # the directory tells lies
        at = made.rfind(b"PK\x01\x02", 0, random.randrange(len(made)) + 1)
        if at >= 0:
            field = random.choice((8, 10, 16, 20, 24, 28, 30, 42))
            struct.pack_into("<I", made, at + field, random.choice((0, 1, 99, 65535, 2**31, 2**32 - 2)))
    return bytes(made)


def damage_packed(random: Random, data: bytes) -> bytes:
    """A zlib stream: its content changed, or grown."""
    content = zlib.decompress(data)
    kind = random.randrange(3)
    if kind == 0:
        return zlib.compress(damage_bytes(random, content))
    return zlib.compress(content * random.choice((2, 1000))) if kind == 1 else zlib.compress(content) + b"more"


_BY_ENDING: dict[str, tuple[Mutation, ...]] = {
    ".json": (damage_json, damage_json, damage_json),
    ".jsonl": (damage_lines, damage_lines),
    ".yaml": (damage_yaml, damage_yaml, damage_yaml),
    ".csv": (damage_csv, damage_csv),
    ".png": (damage_png, damage_png),
    ".tif": (damage_tiff, damage_tiff),
    ".safetensors": (damage_safetensors, damage_safetensors),
    ".zip": (damage_zip, damage_zip),
    ".npz": (damage_zip, damage_zip),
    ".geojson": (damage_json, damage_json),
    ".pt": (damage_zip, damage_zip),
    ".pth": (damage_zip, damage_zip),
    ".z": (damage_packed,),
}


def mutate(random: Random, name: str, data: bytes) -> tuple[str, bytes]:
    """The name of a mutation that suits the file, and what it makes of the content."""
    ending = "." + name.rpartition(".")[2]
    choices = (damage_bytes, damage_bytes, cut, nothing_or_noise, *_BY_ENDING.get(ending, ()) * 2)
    chosen = random.choice(choices)
    return chosen.__name__, chosen(random, data)
