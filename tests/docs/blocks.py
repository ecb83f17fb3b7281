"""The code blocks of README and docs, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.S | re.M)
_PROGRAMS = ("crisp", "torchrun", "pip", "make", "python")


class Block(NamedTuple):
    page: str  # below the checkout
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


class Command(NamedTuple):
    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)[:60]}"


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> Iterator[Block]:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for found in _BLOCK.finditer(text):
            if found[2] == language:
                code = "\n".join(line.removeprefix(found[1]) for line in found[3].splitlines())
                yield Block(str(page.relative_to(ROOT)), text.count("\n", 0, found.start()) + 1, language, code)


def commands() -> Iterator[Command]:
    """Lines that begin with a program of ours or one that readers have; what stands far to the right is a remark."""
    for language in ("", "sh", "bash", "console"):
        for block in blocks(language):
            for line in block.code.replace("\\\n", " ").splitlines():
                line = re.sub(r"\s+#.*$", "", line.removeprefix("$ "))
                words = line.split(" ")
                if words[0] not in _PROGRAMS or "..." in line or "|" in line:
                    continue
                # a continued line is padded on its left, a remark has no such neighbour
                command = re.split(r"(?<=\S) {4,}(?=[^-\s])", line)[0]
                yield Command(block.page, tuple(shlex.split(re.sub(r"\s+>.*$", "", command))))
