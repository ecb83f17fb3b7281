"""What a run says while it runs: metrics.jsonl, and whoever else is to be told."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from crispseg import config as configs
from crispseg.errors import UserError
from crispseg.files import write_text
from crispseg.reading import LARGEST_JSON, parse_json, read_text
from crispseg.train.track import Tracker, finite

METRICS = "metrics.jsonl"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics.jsonl; a last line that was cut short by a kill is left out."""
    if not path.exists():
        return []
    records: list[dict[str, Any]] = []
    for line in read_text(path, LARGEST_JSON, "log").splitlines():
        try:
            records.append(configs.checked(_Record, parse_json(line, str(path)), "a record"))
        except UserError:
            break
    return records


class _Record(TypedDict):
    step: int


class MetricsLog:
    """Appends one JSON object per line. A line is in the file whole or not at all, full disk or not."""

    def __init__(self, folder: Path, steps_done: int, trackers: Sequence[Tracker] = ()) -> None:
        """Records after `steps_done`, which a resumed run makes anew, are dropped. `trackers` have been begun."""
        self.path = folder / METRICS
        kept = [record for record in read_metrics(self.path) if record["step"] <= steps_done]
        write_text(self.path, "".join(_line(record) for record in kept))
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        self._trackers = trackers

    def add(self, step: int, values: Mapping[str, float | None]) -> None:
        before = os.fstat(self._file).st_size
        data = _line({"step": step, **values}).encode()
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            os.ftruncate(self._file, before)
            raise UserError(
                f"cannot write {self.path}: {error.strerror}; the log and the last checkpoint are whole: "
                "free some space and continue with --resume"
            ) from error
        for tracker in self._trackers:
            tracker.log(step, finite(values))

    def finish(self, result: Mapping[str, Any]) -> None:
        for tracker in self._trackers:
            tracker.finish(result)

    def close(self) -> None:
        os.close(self._file)


def _line(record: Mapping[str, Any]) -> str:
    """JSON has no NaN and no infinity: they become null."""
    plain = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in record.items()
    }
    return json.dumps(plain, ensure_ascii=False) + "\n"
