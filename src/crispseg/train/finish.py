"""The end of a run: scores of the last and of the best weights, the model folder, result.json."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from crispseg.files import write_json
from crispseg.metrics.words import percent
from crispseg.train.checkpoint import BEST, State, load_checkpoint
from crispseg.train.distributed import Processes
from crispseg.train.run_folder import RESULT
from crispseg.train.step import Stepper

Scores = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Result:
    """How a run ended. `values` is what result.json holds, empty when the run is not finished."""

    out: Path
    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    signal: int = 0  # that stopped it, if one did
    first: bool = True  # of the processes that trained it together

    @property
    def finished(self) -> bool:
        return bool(self.values)

    @property
    def scores(self) -> Scores:
        """The best weights' on the validation images, as fractions: mIoU, mF1, OA ...; empty when not finished."""
        return dict(self.values.get("best", {}))

    @property
    def weights(self) -> Path:
        """The folder of the best weights, for `crispseg.load`."""
        return self.out / "best"

    def __str__(self) -> str:
        """The scores of a finished run, and where its weights are; in percent, as everywhere."""
        lines = [self.values["protocol"]]
        for kind, step in (("last", self.values["steps"]), ("best", self.values.get("best_step", "?"))):
            scores = self.values[kind]
            names = [name for name in ("mIoU", "mF1", "OA", "BF@3px") if name in scores]
            numbers = "  ".join(f"{name} {percent(scores.get(name))}" for name in names)
            lines.append(f"{kind} (step {step}): {numbers}")
        return "\n".join([*lines, f"best weights: {self.out / 'best'}"])


def finish(
    out: Path,
    stepper: Stepper,
    processes: Processes,
    score: Callable[[], Scores],
    last: Scores,
    facts: dict[str, Any],
    chosen: Mapping[str, Any],
) -> dict[str, Any]:
    """Score the best weights (`chosen` on validation images) beside the last, and save them as the folder best/."""
    best, best_step = last, chosen["step"]
    if best_step != facts["steps"]:
        stepper.load_state_dict(load_checkpoint(out / BEST, State))
        best = score()
    values = {**facts, "best_step": best_step, "last": last, "best": best}
    if processes.first:
        save_best(out, stepper, facts["protocol"], best, chosen)
        write_json(out / RESULT, values)
    processes.wait()
    return values


def save_best(out: Path, stepper: Stepper, protocol: str, scores: Scores, chosen: Mapping[str, Any]) -> None:
    """The model as it is, with its scores, as the folder best/; there from the first validation on."""
    model, before = stepper.model, stepper.model.info
    kept = {name: value for name, value in scores.items() if not isinstance(value, dict | list)}
    told = {"protocol": protocol, **kept}
    model.info = dataclasses.replace(before, scores=told, temperature=chosen.get("temperature", 1.0))
    with stepper.final_weights():
        model.save(out / "best")
    model.info = before  # the run may go on
