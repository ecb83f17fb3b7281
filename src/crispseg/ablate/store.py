"""What finished runs gave, in one file: enough to make every table anew, wherever the run folders are."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict

from crispseg import config as configs
from crispseg.ablate.identity import default_description, same
from crispseg.ablate.plan import Run
from crispseg.errors import UserError
from crispseg.files import write_json
from crispseg.outputs import check_existing
from crispseg.reading import read_json
from crispseg.train.data_record import recorded_digest
from crispseg.train.run_folder import read_result

RESULTS = "results.json"


class _ModelName(TypedDict):
    name: str | None


class _Description(TypedDict):
    model: _ModelName


class _Entry(TypedDict):
    description: _Description
    result: dict[str, Any]


class _File(TypedDict):
    runs: dict[str, _Entry]
    failed: dict[str, str]


class Store:
    """results.json: per run its description, what it started from and its result, or why it failed."""

    def __init__(self, out: Path) -> None:
        self.path = out / RESULTS
        self.runs: dict[str, dict[str, Any]] = {}
        self.failed: dict[str, str] = {}
        self._lock = threading.Lock()
        if self.path.exists():
            try:
                values: _File = configs.checked(_File, read_json(self.path), "it")
            except UserError as error:
                raise UserError(
                    f"{self.path} is not a file that `crisp ablate` wrote ({error}); move it away"
                ) from error
            self.runs, self.failed = {name: {**entry} for name, entry in values["runs"].items()}, values["failed"]

    def begin(self, tables: Iterable[Path]) -> None:
        """Take the folder: with a results.json it is ours, and without one no file of a table's name may be there."""
        if not self.path.exists():
            check_existing(tables, "refuse", hint="choose another --out, or move it away")
            self._write()

    def collect(self, runs: Iterable[Run]) -> None:
        """Take in the results of run folders that are not here yet."""
        before = len(self.runs)
        for run in runs:
            if self.find(run) is None and run.result_file.exists():
                self._take(run)
        if len(self.runs) > before:
            self._write()

    def find(self, run: Run) -> dict[str, Any] | None:
        """The result of this run, or of one that was the same before settings were added to the program."""
        entry = self._entry(run)
        return None if entry is None else _result(entry)

    def learnt_from(self, run: Run) -> dict[str, str]:
        """What tells the data of every finished run on the same data as this one; earlier versions did not note it."""
        data, defaults = run.description["data"], default_description(None)["data"]
        known = {name: entry.get("data") for name, entry in self.runs.items()}
        return {
            name: found
            for name, found in known.items()
            if isinstance(found, str) and same(self.runs[name]["description"].get("data", {}), data, defaults)
        }

    def _entry(self, run: Run) -> dict[str, Any] | None:
        if run.name in self.runs:
            return self.runs[run.name]
        name = run.config.model.name
        alike = [entry for entry in self.runs.values() if entry["description"]["model"]["name"] == name]
        if not alike:
            return None
        defaults = default_description(name)
        return next((entry for entry in alike if same(entry["description"], run.description, defaults)), None)

    def add(self, run: Run) -> dict[str, Any]:
        """Take in the result of a run that has just finished, and give it."""
        with self._lock:
            self._take(run)
            self._write()
            return _result(self.runs[run.name])

    def fail(self, run: Run, why: str) -> None:
        with self._lock:
            self.failed[run.name] = why
            self._write()

    def state(self, run: Run) -> str:
        """In a word, or with the reason of a failure."""
        if self.find(run) is not None:
            return "finished"
        if run.name in self.failed:
            return f"failed: {self.failed[run.name]}"
        return "unfinished" if run.folder.exists() else "not run"

    def _take(self, run: Run) -> None:
        result = read_result(run.folder)
        facts = {"start": run.config.model.weights, "data": recorded_digest(run.folder)}
        self.runs[run.name] = {"description": run.description, "result": result, **facts}
        self.failed.pop(run.name, None)

    def _write(self) -> None:
        write_json(self.path, {"runs": self.runs, "failed": self.failed})


def _result(entry: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = entry["result"]
    return result
