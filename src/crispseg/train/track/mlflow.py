"""MLflow: parameters, metrics and the finished run's config and result.

Where it is kept is MLflow's own business: MLFLOW_TRACKING_URI names a server, a database or a folder;
MLFLOW_EXPERIMENT_NAME the experiment ("crispseg" if it is not set). A resumed run goes on in the same MLflow run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crispseg.train.track import Tracker, best_scores, flat
from crispseg.train.track.identity import keep_id, known_id

_LONGEST = 500  # characters of a parameter's value, which every store of MLflow takes


class MLflow(Tracker):
    def begin(self, run: Path, config: Mapping[str, Any], steps_done: int) -> None:
        from mlflow.tracking import MlflowClient

        self._client, self._folder, self._ended = MlflowClient(), run, False
        self._id = known_id(run, "mlflow")
        if self._id is not None:
            self._client.update_run(self._id, status="RUNNING")
            return
        # a client of our own and no "active run", which belongs to whoever called us
        self._id = self._client.create_run(self._experiment(), run_name=run.name).info.run_id
        keep_id(run, "mlflow", self._id)
        for name, value in flat(config).items():
            self._client.log_param(self._id, name, str(value)[:_LONGEST])

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "crispseg")
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found is not None else self._client.create_experiment(name))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_plain(name), float(value), now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, result: Mapping[str, Any]) -> None:
        self.log(int(result["steps"]), best_scores(result))
        for name in ("config.yaml", "result.json"):
            self._client.log_artifact(self._id, str(self._folder / name))
        self._client.set_terminated(self._id, "FINISHED")
        self._ended = True

    def close(self) -> None:
        if not self._ended:
            self._client.set_terminated(self._id, "KILLED")


def _plain(name: str) -> str:
    """MLflow takes letters, digits and _-./ and blanks, no @: BF@3px becomes BF_3px."""
    return "".join(c if c.isalnum() or c in "_-./ " else "_" for c in name)


def make() -> Tracker:
    return MLflow()
