"""What is run: each case makes its inputs in `in`, writes to `out`, and says which content must be the same.

A new verb is a new class here: `make`, `change`, `run`, `content`, `is_finished`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from tests.fakedata import fake_loveda
from tests.geo.rasters import UTM, random_pixels, write_raster
from tests.predict.standins import StandIn
from tests.train import tiny

from crispseg.errors import UserError

Content = dict[str, Any]


class Case(Protocol):
    name: str
    weight: int  # how often it is played
    refuses_change: bool  # inputs that changed are refused by a run that has begun, not taken

    def make(self, folder: Path) -> None: ...
    def change(self, folder: Path) -> None: ...
    def run(self, folder: Path, existing: str) -> None: ...
    def content(self, folder: Path) -> Content: ...
    def is_finished(self, folder: Path) -> bool: ...
    def has_begun(self, folder: Path) -> bool: ...


def cases() -> dict[str, Case]:
    known: list[Case] = [
        Predict("predict"),
        Predict("exact"),
        Predict("ray"),
        Train(),
        Prepare(),
        Vectorize(),
        Ablate(),
    ]
    return {case.name: case for case in known}


def files_in(folder: Path) -> Content:
    """All but what is hidden."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in found
        if not p.name.startswith(".") and not any(part.startswith(".") for part in p.relative_to(folder).parts)
    }


class _Files:
    """Outputs that are files of their own, compared byte for byte."""

    refuses_change = False

    def content(self, folder: Path) -> Content:
        return files_in(folder / "out")

    def has_begun(self, folder: Path) -> bool:
        return (folder / "out").exists()


class Predict(_Files):
    """All maps and polygons of a scene: tile by tile here, as one image, or over Ray."""

    def __init__(self, name: str) -> None:
        self.name, self.weight = name, {"predict": 40, "exact": 8, "ray": 1}[name]

    def make(self, folder: Path) -> None:
        (folder / "in").mkdir(parents=True, exist_ok=True)
        write_raster(folder / "in" / "scene.tif", random_pixels(3, 260, 180), **UTM)

    def change(self, folder: Path) -> None:
        write_raster(folder / "in" / "scene.tif", random_pixels(3, 260, 180, seed=1), **UTM)

    def run(self, folder: Path, existing: str) -> None:
        from crispseg.geo.maps import MapChoice
        from crispseg.geo.polygons import PolygonChoice
        from crispseg.predict.bands import Pace
        from crispseg.predict.batch import predict_scenes
        from crispseg.predict.scene import Request
        from crispseg.predict.work import Settings

        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # Ray's workers find our model by it
        exact = self.name == "exact"
        request = Request(
            Settings(64, 16, exact=exact, device="cpu"),
            maps=MapChoice(True, not exact, True),
            polygons=PolygonChoice("gpkg"),
            pace=Pace(2, 2),
        )
        report = predict_scenes(
            [str(folder / "in" / "scene.tif")],
            str(folder / "out" / "map.tif"),
            _small_model() if exact else _slow_model(),
            request,
            engine="ray" if self.name == "ray" else "local",
            existing=existing,
        )
        for _, reason in report.failures:
            raise UserError(reason)

    def is_finished(self, folder: Path) -> bool:
        from crispseg.predict.scene import is_waiting

        target = folder / "out" / "map.tif"
        return target.exists() and not is_waiting(target)


def _slow_model() -> StandIn:
    """So slow that it can be caught between tiles."""
    model = StandIn(reach=4)
    model.before = _pause
    return model


def _pause(x: torch.Tensor) -> None:
    time.sleep(0.005)


def _small_model() -> Any:
    import crispseg
    from crispseg.models.base import ModelInfo

    torch.manual_seed(0)
    model = crispseg.create_model("crisp_nano", num_classes=3, **tiny.OPTIONS).eval()
    model.info = ModelInfo(classes=("a", "b", "c"), mean=(15.0,) * 3, std=(8.0,) * 3)
    return model


class Vectorize(_Files):
    name, weight = "vectorize", 14

    def make(self, folder: Path) -> None:
        self._write(folder, 0)

    def change(self, folder: Path) -> None:
        self._write(folder, 1)

    def _write(self, folder: Path, seed: int) -> None:
        (folder / "in").mkdir(parents=True, exist_ok=True)
        classes = np.random.default_rng(seed).integers(0, 3, (120, 80)).astype(np.uint8)
        write_raster(folder / "in" / "map.tif", classes.repeat(2, axis=0).repeat(2, axis=1), nodata=255, **UTM)

    def run(self, folder: Path, existing: str) -> None:
        from crispseg.geo.vectorize import vectorize_map

        target = folder / "out" / "map.gpkg"
        vectorize_map(str(folder / "in" / "map.tif"), str(target), min_area=1.0, existing=existing)

    def is_finished(self, folder: Path) -> bool:
        return (folder / "out" / "map.gpkg").exists()


class Prepare(_Files):
    name, weight = "prepare", 14

    def make(self, folder: Path) -> None:
        fake_loveda(folder / "in")

    def change(self, folder: Path) -> None:
        label = sorted((folder / "in" / "Train" / "Urban" / "masks_png").iterdir())[0]
        others = sorted((folder / "in" / "Train" / "Rural" / "masks_png").iterdir())[0]
        shutil.copy(others, label)

    def run(self, folder: Path, existing: str) -> None:
        from crispseg.data.prepare import check, make_plan, prepare

        plan = make_plan("loveda", folder / "in")
        check(plan)
        prepare(plan, folder / "out")

    def content(self, folder: Path) -> Content:
        found = files_in(folder / "out")
        if "dataset.json" in found:  # the signatures name times of the sources
            manifest = json.loads(found["dataset.json"])
            for entry in manifest["images"]:
                entry.pop("signature")
            found["dataset.json"] = manifest
        return found

    def is_finished(self, folder: Path) -> bool:
        return (folder / "out" / "dataset.json").exists() and not (folder / "out" / ".prepare.jsonl").exists()


class Train:
    name, weight, refuses_change = "train", 20, True
    more: ClassVar[dict[str, Any]] = {
        "ema": 0.9,
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
        found["best"] = files_in(out / "best")["model.safetensors"]
        return found

    def is_finished(self, folder: Path) -> bool:
        return (folder / "out" / "result.json").exists()

    def has_begun(self, folder: Path) -> bool:
        return (folder / "out" / "config.yaml").exists()


class Ablate(Train):
    """A table of two rows; its worker processes are killed with it."""

    name, weight = "ablate", 2

    def make(self, folder: Path) -> None:
        super().make(folder)
        rows = [{"name": name, "set": {"model": {"options": {"dco": name == "on"}}}} for name in ("on", "off")]
        (folder / "in" / "table.yaml").write_text(json.dumps({"title": "DCO", "rows": rows}))  # JSON is YAML

    def run(self, folder: Path, existing: str) -> None:
        from crispseg.cli import main

        data, out = folder / "in" / "squares", folder / "out"
        config = folder / "in" / "config.yaml"
        settings = tiny.settings(data, out, schedule={"steps": 4}, samples=1)
        config.write_text(json.dumps({k: v for k, v in settings.items() if k != "out"}))
        words = ["ablate", str(folder / "in" / "table.yaml"), "--data", str(config), "--out", str(out), "--no-bench"]
        status = main.main(words)
        if status == 130:
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
