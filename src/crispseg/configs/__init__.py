"""The configs and tables that come with crispseg: the YAML files of this folder, each known by its name.

    find_config("potsdam")                     potsdam.yaml here
    find_config("unetformer_r18_potsdam")      peers/unetformer_r18_potsdam.yaml: the last part is enough
    find_config("my/own.yaml")                 a file of one's own: whatever ends in .yaml or .yml is a path
    find_table("dco")                          tables/dco.yaml

`crisp configs` lists them. A config of one's own can start from one of them: `base: potsdam`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from crispseg.errors import UserError, nearest, unknown

Kind = Literal["config", "table"]
SUFFIXES = (".yaml", ".yml")
_FOLDER = Path(__file__).parent
_TABLES = "tables/"


def names(kind: Kind) -> dict[str, Path]:
    """Name -> file of all configs (of a training run) or all tables (of experiments)."""
    files = {path.relative_to(_FOLDER).with_suffix("").as_posix(): path for path in sorted(_FOLDER.rglob("*.yaml"))}
    if kind == "table":
        return {name.removeprefix(_TABLES): path for name, path in files.items() if name.startswith(_TABLES)}
    return {name: path for name, path in files.items() if not name.startswith(_TABLES)}


def find_config(word: str | Path) -> Path:
    """The file of a training config, by its name or path."""
    return _find("config", str(word))


def find_table(word: str | Path) -> Path:
    """The file of a table of experiments, by its name or path."""
    return _find("table", str(word))


def find_config_or_folder(word: str) -> Path:
    """A config, by its name or path, or else a data folder; a word that could be either is refused."""
    folder = Path(word)
    if not folder.is_dir():
        known = _short(names("config"))
        if word not in known and not word.endswith(SUFFIXES):
            if folder.exists():
                raise UserError(f"{word} is a file, neither a data folder nor a config ({', '.join(SUFFIXES)})")
            if "/" in word or not nearest(word, known):
                raise UserError(f"no folder {word}, nor a config of that name; `crisp configs` lists them")
        return find_config(word)
    if word in _short(names("config")):
        raise UserError(f"{word} is a folder here and the name of a config; for the folder write ./{word}")
    return folder


def summary(path: Path) -> str:
    """What a config or table is, in a line: a table's title, or the first sentence of the comment on top."""
    lines = path.read_text(encoding="utf-8").splitlines()
    titles = [line.removeprefix("title:").strip() for line in lines if line.startswith("title:")]
    if titles:
        return titles[0]
    comment = []
    for line in lines:
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# "))
    return " ".join(comment).split(". ")[0].rstrip(".")


def _short(known: dict[str, Path]) -> dict[str, Path]:
    """Also by the last part of a name; a test keeps these distinct."""
    return {**{name.rpartition("/")[2]: path for name, path in known.items()}, **known}


def _find(kind: Kind, word: str) -> Path:
    known = _short(names(kind))
    if word in known:
        return known[word]
    if not word.endswith(SUFFIXES):
        raise unknown(kind, word, known if nearest(word, known) else names(kind))
    path = Path(word)
    if not path.is_file():
        stem = path.stem
        hint = f"; the {kind} that comes along is called {stem}" if stem in known else ""
        raise UserError(f"no {kind} file {word}{hint}")
    return path
