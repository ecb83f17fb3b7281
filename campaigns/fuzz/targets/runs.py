"""What runs leave behind."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fakedata.folders import fake_own
from tests.train import tiny

from campaigns.fuzz.targets.base import Target, replaced
from campaigns.fuzz.targets.models import small_model

_FINISHED = ("result.json", "metrics.jsonl", "results.json", "config.yaml", "track.json")
_RUN = ("run/last.pt", "run/last.pt", "run/config.yaml", "run/protocol.json", "run/data.json")


def targets() -> list[Target]:
    from crispseg.ablate.store import Store
    from crispseg.bench.result import read as read_bench
    from crispseg.train.log import read_metrics
    from crispseg.train.loop import resume
    from crispseg.train.track.identity import known_id
    from crispseg.view.run import run_state

    def finished(folder: Path) -> None:
        scores = {"mIoU": 0.5, "mF1": None, "OA": 0.75, "BF@3px": 0.25, "IoU": {"a": 0.5}}
        values = {"model": "m", "protocol": "p", "steps": 4, "best_step": 2, "last": scores, "best": scores}
        (folder / "config.yaml").write_text("seed: 1\nmodel: {name: m}\ndata: {path: x}\nschedule: {steps: 4}\n")
        (folder / "track.json").write_text(json.dumps({"mlflow": "abc"}))
        (folder / "result.json").write_text(json.dumps(values))
        lines = [{"step": step, "train/loss": 0.5, "lr": 1e-3} for step in range(5)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        entry = {"description": {"model": {"name": "crisp_nano"}, "seed": 0}, "result": values}
        (folder / "results.json").write_text(json.dumps({"runs": {"a": entry}, "failed": {"b": "why"}}))

    def read_all(folder: Path) -> None:
        resume(folder)
        sum(record["step"] for record in read_metrics(folder / "metrics.jsonl"))
        known_id(folder, "mlflow")
        run_state(folder)
        for entry in Store(folder).runs.values():
            assert isinstance(entry["description"]["model"]["name"], str | None)

    return [
        Target("finished run", finished, _FINISHED, read_all),
        Target("bench result", _bench, ("r.json",), lambda folder: read_bench(folder / "r.json"), share=2),
        Target("stopped run", _stopped, _RUN, _take_up, share=1),
        Target("run to score", _run_to_score, ("run/protocol.json", "run/config.yaml"), _open_run, share=2),
    ]


def _bench(folder: Path) -> None:
    from crispseg.bench.result import Latency, ModelCell, Result, Skipped, write

    where = {"size": 64, "batch": 1, "precision": "fp32", "mode": "eager", "device": "cpu"}
    cell = ModelCell(**where, check_bound=1e-3, model="m", latency_ms=Latency(1.0, 0.1, 5))  # type: ignore[arg-type]
    write(Result("models", {"torch": "2"}, {"x": 1}, (cell,), (Skipped("n", "why"),)), folder / "r.json")


def _stopped(folder: Path) -> None:
    """A run's folder as after Ctrl-C."""
    from crispseg.train import loop
    from crispseg.train.config import config_from

    tiny.make_folder(folder / "data", count=3, size=32)
    small = {
        **tiny.OPTIONS,
        "width": 4,
        "heads": [1, 1, 1, 2],
        "state": 2,
        "dim": 8,
        "attention_heads": 1,
        "mlp_dim": 8,
    }
    config = config_from(
        tiny.settings(folder / "data", folder / "run", ema=0.9, model={"name": "crisp_nano", "options": small})
    )
    with replaced(loop.Trainer, "asked_to_stop", lambda trainer: True):
        loop.train(config)


def _take_up(folder: Path) -> None:
    """`crisp train --resume`, up to the first step."""
    from crispseg.errors import UserError
    from crispseg.train import loop
    from crispseg.train.config import train_config

    config = train_config(folder / "run" / "config.yaml")
    large = (config.crop or 0) > 64 or (config.batch_size or 0) > 64
    if large or Path(config.data.path) != (folder / "data").resolve():
        raise UserError("another data folder, or work of minutes")
    with replaced(loop, "run_trainers", lambda trainers, outs, quiet: [loop.Result(outs[0])]):
        loop.resume(folder / "run")


def _run_to_score(folder: Path) -> None:
    import yaml

    fake_own(folder / "data", images=2, size=(16, 24))
    (folder / "run").mkdir()
    (folder / "run" / "config.yaml").write_text(yaml.safe_dump({"data": {"path": str(folder / "data"), "split": None}}))
    protocol = {"dataset": "data", "name": "data/own3", "train": ["site0_part0"], "val": ["site0_part1"], "hash": "x"}
    (folder / "run" / "protocol.json").write_text(json.dumps(protocol))


def _open_run(folder: Path) -> None:
    from crispseg import config as configs
    from crispseg.errors import UserError
    from crispseg.evaluate.opening import Opened, open_data, training_notes

    config = configs.read_yaml(folder / "run" / "config.yaml").get("data", {})
    named = config.get("split") if isinstance(config, dict) else None
    if isinstance(named, str) and folder.resolve() not in (folder / "run" / named).resolve().parents:
        raise UserError("another split, which a config may name")
    opened = Opened(small_model(), "run", folder / "run")
    training_notes(opened, open_data(str(folder / "data"), [opened]), None)
