"""What a case is, and what cases share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

Content = dict[str, Any]


class Case(Protocol):
    name: str
    weight: int  # how often it is played
    refuses_change: bool  # inputs that changed are refused by a run that has begun, not taken
    needs: tuple[str, ...]  # modules that are imported before the forks, so that a run begins with its work

    def make(self, folder: Path) -> None: ...
    def change(self, folder: Path) -> None: ...
    def run(self, folder: Path, existing: str) -> None: ...
    def content(self, folder: Path) -> Content: ...
    def is_finished(self, folder: Path) -> bool: ...
    def has_begun(self, folder: Path) -> bool: ...


def files_in(folder: Path) -> Content:
    """All but what is hidden."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in found
        if not any(part.startswith(".") for part in p.relative_to(folder).parts)
    }


class Files:
    """Outputs that are files of their own, compared byte for byte."""

    refuses_change = False

    def content(self, folder: Path) -> Content:
        return files_in(folder / "out")

    def has_begun(self, folder: Path) -> bool:
        return (folder / "out").exists()
