"""Weights & Biases: config, metrics and the finished run's scores.

Its own variables apply: WANDB_PROJECT ("crispseg" if it is not set), WANDB_MODE=offline to keep everything in the run's
folder and `wandb sync` it later. A resumed run goes on in the same W&B run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crispseg.train.track import Tracker, best_scores
from crispseg.train.track.identity import keep_id, known_id


class WeightsAndBiases(Tracker):
    _run: Any = None

    def begin(self, run: Path, config: Mapping[str, Any], steps_done: int) -> None:
        import wandb

        known = known_id(run, "wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "crispseg"),
            name=run.name,
            config=dict(config),
            dir=str(run),
            id=known,
            resume="allow" if known else None,
        )
        keep_id(run, "wandb", self._run.id)
        # our steps are the axis: W&B's own counter may not go back when a resumed run makes its last records anew
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def finish(self, result: Mapping[str, Any]) -> None:
        self._run.summary.update(best_scores(result))

    def close(self) -> None:
        self._run.finish()


def make() -> Tracker:
    return WeightsAndBiases()
