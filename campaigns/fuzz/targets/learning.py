"""What `crisp pretrain` reads and leaves, and weights of others."""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
from tests.pretrain import toys

from campaigns.fuzz.targets.base import Target, replaced

_CONFIG = """sets: [{path: x, labels: true, share: 2}, {path: y, labels: false, side: 64}]
model: {name: vssd_nano, options: {}}
schedule: {steps: 10}
optimizer: {lr: 0.001}
sizes: [32, 48]
size_shares: [1, 2]
batch_size: 8
"""
_RUN = ("run/last.pt", "run/last.pt", "run/config.yaml", "run/data.json", "run/metrics.jsonl")


def targets() -> list[Target]:
    from crispseg.pretrain.config import pretrain_config

    def config(folder: Path) -> None:
        (folder / "config.yaml").write_text(_CONFIG)

    return [
        Target("pretraining config", config, ("config.yaml",), lambda f: pretrain_config(str(f / "config.yaml"))),
        Target("stopped pretraining", _stopped, _RUN, _take_up, share=1),
        Target("finished pretraining", _finished, ("result.json",), _look, share=2),
        Target("cached pictures", _cached, ("cache/pictures.npy",), _read_cached, share=2),
        Target("weights of a rival's authors", _authors, ("w.pth",), _load_authors, share=2),
    ]


def _stopped(folder: Path) -> None:
    from crispseg.pretrain import loop
    from crispseg.pretrain.config import config_from

    small = {"name": "vssd_nano", "options": {**toys.OPTIONS, "width": 4, "heads": [1, 1, 1, 2], "state": 2}}
    data = toys.class_folders(folder / "data", classes=2, count=4, size=32)
    settings = toys.settings(folder / "run", {"path": str(data), "side": 32}, model=small, batch_size=4)
    with replaced(loop.Pretrainer, "_asked_to_stop", lambda trainer: True):
        loop.pretrain(config_from(settings), quiet=True)


def _take_up(folder: Path) -> None:
    """`crisp pretrain --resume`, up to the first step."""
    from crispseg.errors import UserError
    from crispseg.pretrain import loop
    from crispseg.pretrain.config import pretrain_config
    from crispseg.train.log import read_metrics

    run = folder / "run"
    config = pretrain_config(str(run / "config.yaml"))
    large = max(config.batch_size or 0, *config.sizes, config.schedule.steps or 0) > 64 or config.teacher.build
    if large or [Path(one.path) for one in config.sets] != [(folder / "data").resolve()] or config.model.weights:
        raise UserError("other pictures or weights, or work of minutes")
    read_metrics(run / "metrics.jsonl")
    with replaced(loop.Pretrainer, "run", lambda trainer, out, quiet: loop.Pretrained(out)):
        loop.resume(run, quiet=True)


def _finished(folder: Path) -> None:
    (folder / "config.yaml").write_text(_CONFIG)
    (folder / "result.json").write_text(json.dumps({"backbone": "b", "steps": 3, "scores": {"x/knn": 0.5}}))


def _look(folder: Path) -> None:
    from crispseg.pretrain.loop import resume

    str(resume(folder, quiet=True))


def _cached(folder: Path) -> None:
    (folder / "cache").mkdir()
    np.save(folder / "cache" / "pictures.npy", np.zeros(_SHAPE, np.uint8))


_SHAPE = (4, 3, 16, 16)


def _read_cached(folder: Path) -> None:
    from crispseg.pretrain.pictures import _read_cache

    _read_cache(folder / "cache" / "pictures.npy", _SHAPE)


@functools.cache
def _rival() -> Any:
    import crispseg

    return crispseg.create_model("unetformer_r18", 3)


def _authors(folder: Path) -> None:
    import torch

    few = dict(itertools.islice(_rival().state_dict().items(), 6))
    torch.save({"state_dict": few, "epoch": 3}, folder / "w.pth")


def _load_authors(folder: Path) -> None:
    from crispseg.peers import load_authors_checkpoint

    load_authors_checkpoint(_rival(), folder / "w.pth", partial=True)
