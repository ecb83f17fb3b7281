"""What learns: `crisp train`, `crisp pretrain`, `crisp ablate`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

import torch
from tests.pretrain import toys
from tests.train import tiny

from campaigns.kill.cases.base import Content, files_in
from crispseg.errors import UserError


class Train:
    name, weight, refuses_change = "train", 10, True
    needs: tuple[str, ...] = ("crispseg.train.loop", "crispseg.cli.main", "scipy.ndimage", "PIL.PngImagePlugin")
    more: ClassVar[dict[str, Any]] = {
        "ema": 0.9,
        "schedule": {"steps": 8},
        "val_every": 4,
        "save_every": 2,
        "accumulate": 2,
        "optimizer": {"lr": 0.003, "lookahead": 3},
    }

    def make(self, folder: Path) -> None:
        tiny.make_folder(folder / "in" / "squares")

    def change(self, folder: Path) -> None:
        one, other = sorted((folder / "in" / "squares" / "masks").iterdir())[:2]
        shutil.copy(other, one)

    def run(self, folder: Path, existing: str) -> None:
        from crispseg.train import loop
        from crispseg.train.config import config_from

        out = folder / "out"
        if (out / "config.yaml").exists():
            result = loop.resume(out, quiet=True)
        else:
            result = loop.train(config_from(tiny.settings(folder / "in" / "squares", out, **self.more)), quiet=True)
        if not result.finished:
            raise KeyboardInterrupt

    def content(self, folder: Path) -> Content:
        out = folder / "out"
        if not (out / "result.json").exists():
            return {}
        found: Content = {}
        for name in ("last.pt", "best.pt"):
            state = torch.load(out / name, weights_only=True)
            parts = (state[part] for part in ("step", "best", "model", "optimizer", "average", "lookahead"))
            found[name] = [_plain(part) for part in parts]
        lines = (out / "metrics.jsonl").read_text().splitlines()
        found["metrics.jsonl"] = [_timeless(json.loads(line)) for line in lines]
        found["result.json"] = _timeless(json.loads((out / "result.json").read_text()))
        found["best"] = {name: files_in(out / "best")[name] for name in ("model.safetensors", "config.json")}
        return found

    def is_finished(self, folder: Path) -> bool:
        return (folder / "out" / "result.json").exists()

    def has_begun(self, folder: Path) -> bool:
        return (folder / "out" / "config.yaml").exists()


class Pretrain(Train):
    """A backbone, on class folders."""

    name, weight = "pretrain", 8
    needs = (*Train.needs, "crispseg.pretrain.loop")

    def make(self, folder: Path) -> None:
        toys.class_folders(folder / "in" / "stripes", count=6)

    def change(self, folder: Path) -> None:
        one, other = sorted((folder / "in" / "stripes" / "kind0").iterdir())[:2]
        shutil.copy(other, one)

    def run(self, folder: Path, existing: str) -> None:
        from crispseg.pretrain import loop
        from crispseg.pretrain.config import config_from

        out = folder / "out"
        settings = toys.settings(
            out,
            {"path": str(folder / "in" / "stripes"), "side": 32},
            schedule={"steps": 6},
            score_every=3,
            save_every=2,
        )
        if (out / "config.yaml").exists():
            result = loop.resume(out, quiet=True)
        else:
            result = loop.pretrain(config_from(settings), quiet=True)
        if not result.finished:
            raise KeyboardInterrupt

    def content(self, folder: Path) -> Content:
        out = folder / "out"
        if not (out / "result.json").exists():
            return {}
        state = torch.load(out / "last.pt", weights_only=True)
        lines = (out / "metrics.jsonl").read_text().splitlines()
        return {
            "last.pt": {part: _plain(value) for part, value in state.items() if part not in ("seconds", "config")},
            "metrics.jsonl": [_timeless(json.loads(line)) for line in lines],
            "result.json": _timeless(json.loads((out / "result.json").read_text())),
            "backbone": files_in(out / "backbone"),
        }


class Ablate(Train):
    """A table of two rows; its worker processes are killed with it."""

    name, weight = "ablate", 1

    def make(self, folder: Path) -> None:
        super().make(folder)
        rows = [{"name": name, "set": {"model": {"options": {"dco": name == "on"}}}} for name in ("on", "off")]
        (folder / "in" / "table.yaml").write_text(json.dumps({"title": "DCO", "rows": rows}))  # JSON is YAML
        settings = tiny.settings(folder / "in" / "squares", folder / "out", schedule={"steps": 4}, samples=1)
        config = {key: value for key, value in settings.items() if key != "out"}
        (folder / "in" / "config.yaml").write_text(json.dumps(config))

    def run(self, folder: Path, existing: str) -> None:
        from crispseg.cli import main

        table, config = (str(folder / "in" / name) for name in ("table.yaml", "config.yaml"))
        words = ["ablate", table, "--data", config, "--out", str(folder / "out"), "--no-bench"]
        status = main.main(words)
        if status in (130, 143):
            raise KeyboardInterrupt
        if status:
            raise UserError(f"crisp ablate ended with {status}")

    def content(self, folder: Path) -> Content:
        path = folder / "out" / "results.json"
        runs = json.loads(path.read_text())["runs"] if path.exists() else {}
        # a run's name holds the place of its data
        switched = {name: bool(run["description"]["model"]["options"].get("dco")) for name, run in runs.items()}
        return {f"dco {switched[name]}": _timeless(run["result"]) for name, run in runs.items()}

    def is_finished(self, folder: Path) -> bool:
        return (folder / "out" / "table.md").exists() and len(self.content(folder)) == 2

    def has_begun(self, folder: Path) -> bool:
        return any((folder / "out").glob("runs/*/config.yaml"))


def _plain(value: Any) -> Any:
    """Tensors as bytes, so that == compares them."""
    if isinstance(value, torch.Tensor):
        return value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _timeless(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k not in ("seconds", "images_per_second", "epoch_seconds")}
