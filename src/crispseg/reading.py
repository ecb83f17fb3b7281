"""Files that somebody else may have written, read at the door: a regular file of a bearable size, parsed without
surprises. What is wrong with one is a UserError that names it; `crispseg.config.checked` then checks its types.

Kept to the standard library and PyYAML, so that every room may use it.
"""

from __future__ import annotations

import csv
import json
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

from crispseg.errors import UserError

if TYPE_CHECKING:
    import yaml

LARGEST_JSON = 256 << 20  # bytes; the manifest of a hundred thousand images has some fifty million
LARGEST_YAML = 256 << 10  # configs and class tables are written by hand
LARGEST_CSV = 64 << 20
DEEPEST = 60  # lists in lists; what walks them recurses
_MOST_NODES = 200_000  # of a YAML file, each alias counted as often as it is used
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

# What foreign parsers of binary files (pickles, zips, images) raise on damage, beside their own exceptions. They
# promise none of these, so each caller adds what it says: that the file is damaged.
DAMAGE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    RuntimeError,
    SyntaxError,
    TokenError,  # numpy's, of the head of an array
    TypeError,
    ValueError,
)


def require_file(path: str | os.PathLike[str], what: str = "file") -> os.stat_result:
    """The facts of a regular file; a pipe would wait for ever, and a device never ends."""
    try:
        facts = os.stat(path)
    except FileNotFoundError:
        raise UserError(f"there is no {what} {os.fspath(path)}") from None
    except (OSError, ValueError) as error:  # a name with a NUL is a ValueError
        raise UserError(f"cannot read {os.fspath(path)!r}: {reason(error)}") from error
    if not stat.S_ISREG(facts.st_mode):
        kind = "a folder" if stat.S_ISDIR(facts.st_mode) else "a pipe or device"
        raise UserError(f"{os.fspath(path)} is {kind}, not a {what}")
    return facts


def refuse_special(path: str | os.PathLike[str]) -> None:
    """Pipes, sockets and devices: reading one may never end. What is not there is the caller's to tell."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UserError(f"{os.fspath(path)} is a pipe or device, not a file")


def plainly(path: str | os.PathLike[str]) -> str:
    """Why no parser can read what lies there, where that is plain; they say that they do not recognise the format."""
    if os.path.isdir(path):
        return "it is a folder"
    if os.path.isfile(path) and not os.path.getsize(path):
        return "it is empty (0 bytes); copy or download it again"
    return ""


def read_text(path: str | os.PathLike[str], limit: int, what: str = "file") -> str:
    """The UTF-8 text of a file of at most `limit` bytes; a byte-order mark is dropped."""
    size = require_file(path, what).st_size
    if size > limit:
        raise UserError(f"{path} has {size / 2**20:.1f} MiB; a {what} has {limit / 2**20:g} MiB at most")
    try:
        with open(path, "rb") as file:
            return file.read(limit + 1)[:limit].decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """An exception in one short line."""
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    line = " ".join(words.split()) or type(error).__name__
    return line if len(line) <= 300 else f"{line[:300]} ..."


def read_json(path: str | os.PathLike[str], what: str = "file") -> Any:
    return parse_json(read_text(path, LARGEST_JSON, what), str(path))


def parse_json(text: str, where: str) -> Any:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is damaged: it is not valid JSON ({reason(error)})") from error
    _refuse_depth(values, where)
    _refuse_halves(text, values, where)
    return values


def _refuse_halves(text: str, values: Any, where: str) -> None:
    """An escape can name half a character (a surrogate), which no file or page can take, or NUL, which no path can."""
    if "\\" not in text:
        return
    try:
        plain = json.dumps(values, ensure_ascii=False, default=str)
        plain.encode()
    except (UnicodeEncodeError, TypeError) as error:
        raise UserError(f"{where} holds text that is none: {reason(error)}") from error
    if "\\u0000" in plain:
        raise UserError(f"{where} holds text that is none: a NUL character")


def _refuse_depth(values: Any, where: str) -> None:
    level, depth = [values], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise UserError(f"{where} is damaged: it nests more than {DEEPEST} levels deep")
        nested = [value for value in level if isinstance(value, dict | list)]
        level = [inner for value in nested for inner in (value.values() if isinstance(value, dict) else value)]


def read_yaml_file(path: str | os.PathLike[str], what: str = "config file") -> Any:
    return parse_yaml(read_text(path, LARGEST_YAML, what), str(path))


def parse_yaml(text: str, where: str) -> Any:
    """Plain values only. Dates stay text, aliases are counted before they are followed, loops are refused."""
    import yaml

    if len(text) > LARGEST_YAML:
        raise UserError(f"{where} is too long: {len(text)} characters")
    if _bracket_depth(text) > 10 * DEEPEST:  # PyYAML takes quadratic time for them before it gives up
        raise UserError(f"{where} nests more than {DEEPEST} levels deep")
    try:
        values = _load_plain(text, where)
    except yaml.YAMLError as error:
        raise UserError(f"{where} is not valid YAML: {reason(error)}") from error
    except RecursionError as error:
        raise UserError(f"{where} nests more than {DEEPEST} levels deep") from error
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError) as error:
        # an explicit tag on something that is not one: `!!int x`, `!!timestamp y`
        raise UserError(f"{where} is not valid YAML: {reason(error)}") from error
    _refuse_halves(text, values, where)
    return values


def _load_plain(text: str, where: str) -> Any:
    loader = _loader()(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _count_nodes(node, where)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _bracket_depth(text: str) -> int:
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _loader() -> type[yaml.SafeLoader]:
    """PyYAML's safe loader, with dates left as text: no config of ours holds one, and 2020-99-99 is none."""
    import yaml

    class PlainLoader(yaml.SafeLoader):
        pass

    PlainLoader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    return PlainLoader


def _count_nodes(root: Any, where: str) -> None:
    """Refuse what grows when its aliases are followed, loops among them."""
    import yaml

    count = 0
    level, depth = [root], 0
    while level:
        depth, count = depth + 1, count + len(level)
        if depth > DEEPEST or count > _MOST_NODES:
            grown = "nests too deep or in a circle" if depth > DEEPEST else "grows too large through its aliases"
            raise UserError(f"{where} {grown}")
        inner: list[Any] = []
        for node in level:
            if isinstance(node, yaml.MappingNode):
                inner += [part for pair in node.value for part in pair]
            elif isinstance(node, yaml.SequenceNode):
                inner += node.value
        level = inner


def read_csv(path: str | os.PathLike[str], columns: Iterable[str], what: str) -> list[dict[str, str]]:
    """The rows of a CSV file by the names in its first line; a cell that is not there is empty."""
    text = read_text(path, LARGEST_CSV, what)
    if "\0" in text:
        raise UserError(f"{path} cannot be read as CSV: it holds a NUL character")
    try:
        reader = csv.reader(text.splitlines(), skipinitialspace=True)
        lines = [line for line in reader if line]
    except csv.Error as error:
        raise UserError(f"{path} cannot be read as CSV: {reason(error)}") from error
    names = [name.strip() for name in lines[0]] if lines else []
    if len(names) == 1 and ";" in names[0]:
        raise UserError(f"{path} is separated by semicolons; save it as CSV with commas")
    if not set(columns) <= set(names):
        raise UserError(f"{path} must have a first line `{','.join(columns)}`")
    return [dict(zip(names, [*line, *[""] * (len(names) - len(line))], strict=False)) for line in lines[1:]]


def plain_cell(value: Any) -> Any:
    """A CSV cell that no spreadsheet takes for a formula: text that begins like one gets an apostrophe in front."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def list_folder(folder: str | os.PathLike[str]) -> list[Path]:
    """What lies in a folder, in order."""
    try:
        return sorted(Path(folder).iterdir())
    except OSError as error:
        raise UserError(f"cannot look into the folder {os.fspath(folder)}: {reason(error)}") from error
