"""Which run of a service is ours: track.json in the run's folder, so that a resumed run goes on there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crispseg.files import write_json
from crispseg.reading import read_json

FILE = "track.json"


def known_id(run: Path, service: str) -> str | None:
    return _read(run).get(service)


def keep_id(run: Path, service: str, name: str) -> None:
    write_json(run / FILE, {**_read(run), service: name})


def _read(run: Path) -> dict[str, Any]:
    values = read_json(run / FILE) if (run / FILE).exists() else {}
    return values if isinstance(values, dict) else {}
