"""What runs leave behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.fakedata.folders import fake_own
from tests.train import tiny

from campaigns.fuzz.targets.base import Target
from campaigns.fuzz.targets.models import small_model


def targets() -> list[Target]:
    from crispseg.ablate.store import Store
    from crispseg.bench.result import read as read_bench
    from crispseg.train.log import read_metrics
    from crispseg.train.loop import resume

    def finished(folder: Path) -> None:
        scores = {"mIoU": 0.5, "mF1": None, "OA": 0.75, "BF@3px": 0.25, "IoU": {"a": 0.5}}
        values = {"model": "m", "protocol": "p", "steps": 4, "best_step": 2, "last": scores, "best": scores}
        (folder / "config.yaml").write_text("seed: 1\n")
        (folder / "result.json").write_text(json.dumps(values))
        lines = [{"step": step, "train/loss": 0.5, "lr": 1e-3} for step in range(5)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        entry = {"description": {"model": {"name": "crisp_nano"}, "seed": 0}, "result": values}
        (folder / "results.json").write_text(json.dumps({"runs": {"a": entry}, "failed": {"b": "why"}}))

    def read_all(folder: Path) -> None:
        resume(folder)
        sum(record["step"] for record in read_metrics(folder / "metrics.jsonl"))
        for entry in Store(folder).runs.values():
            assert isinstance(entry["description"]["model"]["name"], str | None)

    return [
        Target("finished run", finished, ("result.json", "metrics.jsonl", "results.json"), read_all),
        Target("bench result", _bench, ("r.json",), lambda folder: read_bench(folder / "r.json"), share=1),
        Target("stopped run", _stopped, ("run/last.pt", "run/last.pt", "run/config.yaml"), _take_up, share=1),
        Target("run to score", _run_to_score, ("run/protocol.json", "run/config.yaml"), _open_run, share=1),
    ]


def _bench(folder: Path) -> None:
    from crispseg.bench.result import Latency, ModelCell, Result, Skipped, write

    where = {"size": 64, "batch": 1, "precision": "fp32", "mode": "eager", "device": "cpu"}
    cell = ModelCell(**where, check_bound=1e-3, model="m", latency_ms=Latency(1.0, 0.1, 5))  # type: ignore[arg-type]
    write(Result("models", {"torch": "2"}, {"x": 1}, (cell,), (Skipped("n", "why"),)), folder / "r.json")


def _stopped(folder: Path) -> None:
    """A run's folder with a checkpoint, as after Ctrl-C."""
    from crispseg.train.checkpoint import save_checkpoint
    from crispseg.train.config import config_from, write_config

    tiny.make_folder(folder / "data", count=3, size=32)
    config = config_from(tiny.settings(folder / "data", folder / "run", ema=0.9))
    (folder / "run").mkdir()
    trainer = _trainer(config)
    write_config(trainer.config, folder / "run" / "config.yaml")
    best, meter = {"step": 2, "mIoU": 0.5}, {"sums": {"loss": 1.0}, "steps": 2}
    facts = {"step": 3, "meter": meter, "best": best, "seconds": 1.0, "protocol": trainer.folder.protocol.hash}
    save_checkpoint(folder / "run" / "last.pt", {**facts, **trainer.stepper.state_dict()})


def _trainer(config: Any) -> Any:
    import torch

    from crispseg.train.distributed import Processes
    from crispseg.train.loop import Trainer
    from crispseg.train.setup import complete, open_data
    from crispseg.train.watch import StopRequest

    folder = open_data(config)
    return Trainer(complete(config, folder, "cpu"), folder, Processes(torch.device("cpu")), StopRequest())


def _take_up(folder: Path) -> None:
    """As `resume` does, up to the first step."""
    from crispseg.errors import UserError
    from crispseg.train.checkpoint import State, load_checkpoint
    from crispseg.train.config import train_config

    state = load_checkpoint(folder / "run" / "last.pt", State)
    config = train_config(folder / "run" / "config.yaml")
    if (
        Path(config.data.path) != (folder / "data").resolve()
        or (config.crop or 0) > 64
        or (config.batch_size or 0) > 64
    ):
        raise UserError("another data folder, or work of minutes")
    _trainer(config).load(state)


def _run_to_score(folder: Path) -> None:
    import yaml

    fake_own(folder / "data", images=2, size=(16, 24))
    (folder / "run").mkdir()
    (folder / "run" / "config.yaml").write_text(yaml.safe_dump({"data": {"path": str(folder / "data"), "split": None}}))
    (folder / "run" / "protocol.json").write_text(json.dumps({"dataset": "data", "train": ["site0"], "hash": "x"}))


def _open_run(folder: Path) -> None:
    from crispseg.evaluate.opening import Opened, open_data, training_notes

    opened = Opened(small_model(), "run", folder / "run")
    training_notes(opened, open_data(str(folder / "data"), [opened]), None)
