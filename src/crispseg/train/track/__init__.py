"""Who is told how a run comes along, beside metrics.jsonl: TensorBoard, MLflow, Weights & Biases, or a class of yours.

A tracker is told of the beginning, of every record of the log, and of the end. Those named by the config's `track` may
fail without harm: the run goes on without them, and metrics.jsonl has everything. What a tracker given to
`crispseg.train(trackers=...)` raises ends the run, so it can stop one that is not worth going on with.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from crispseg.config import shown
from crispseg.errors import UserError, unknown

# Name in the config -> the module that must be there, and what installs it
_NAMED = {
    "tensorboard": ("tensorboard", "crispseg[track]"),
    "mlflow": ("mlflow", "crispseg[mlflow]"),
    "wandb": ("wandb", "crispseg[wandb]"),
}


class Tracker:
    """Told how a run comes along. Override what you need; each does nothing here."""

    def begin(self, run: Path, config: Mapping[str, Any], steps_done: int) -> None:
        """A run begins in the folder `run`, or goes on after `steps_done` steps: records after those are made anew."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers by name after `step` steps: `train/loss`, `lr`; at a validation `val/mIoU`, `val/IoU/CLASS`."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """The run has finished; `result` is what result.json holds."""

    def close(self) -> None:
        """The last call, however the run ended, once `begin` has returned."""


class _Guarded(Tracker):
    """A tracker whose failure is told once; then it is left out."""

    def __init__(self, name: str, tracker: Tracker, say: Callable[[str], None]) -> None:
        self.name, self.tracker, self.say = name, tracker, say
        self.failed = False

    def begin(self, run: Path, config: Mapping[str, Any], steps_done: int) -> None:
        self._try(lambda: self.tracker.begin(run, config, steps_done))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._try(lambda: self.tracker.log(step, values))

    def finish(self, result: Mapping[str, Any]) -> None:
        self._try(lambda: self.tracker.finish(result))

    def close(self) -> None:
        self._try(self.tracker.close)

    def _try(self, call: Callable[[], None]) -> None:
        if self.failed:
            return
        try:
            call()
        except Exception as error:  # a service's client raises whatever it likes
            self.failed = True
            reason = " ".join(str(error).split()) or type(error).__name__
            self.say(f"{self.name} failed: {reason[:300]}; the run goes on without it, metrics.jsonl has everything")


def check_names(track: str | None) -> list[str]:
    """The trackers that a config's `track` names; one that is unknown or not installed is an error."""
    if track is None:
        return ["tensorboard"] if _installed("tensorboard") else []
    names = [name.strip() for name in track.split(",") if name.strip() not in ("", "none")]
    for name in names:
        if name not in _NAMED:
            raise unknown("tracker", name, [*_NAMED, "none"])
        if not _installed(name):
            raise UserError(f"track={track} needs {name}: pip install '{_NAMED[name][1]}'")
    return names


def check_trackers(given: Iterable[Tracker]) -> list[Tracker]:
    """Refuse what cannot be told of a run, such as a class instead of an object of it."""
    given = list(given)
    for tracker in given:
        told = (getattr(tracker, name, None) for name in ("begin", "log", "finish", "close"))
        if isinstance(tracker, type) or not all(map(callable, told)):
            raise UserError(f"a tracker is an object of a subclass of Tracker, not {shown(tracker)}")
    return given


def named_trackers(track: str | None, say: Callable[[str], None]) -> list[Tracker]:
    """The trackers that a config's `track` names (none: TensorBoard where it is installed)."""
    return [_Guarded(name, importlib.import_module(f"{__name__}.{name}").make(), say) for name in check_names(track)]


def finite(values: Mapping[str, float | None]) -> dict[str, float]:
    """The numbers that a tracker can draw."""
    return {name: value for name, value in values.items() if value is not None and abs(value) < float("inf")}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names, as the command line has them."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, Mapping) and value
        found |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return found


def best_scores(result: Mapping[str, Any]) -> dict[str, float]:
    """The finished run's scores of its best weights, as `best/mIoU` and so on."""
    scores: Iterable[tuple[str, Any]] = result.get("best", {}).items()
    return {f"best/{name}": value for name, value in scores if isinstance(value, int | float)}


def _installed(name: str) -> bool:
    return importlib.util.find_spec(_NAMED[name][0]) is not None
