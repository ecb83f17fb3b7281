"""What is fuzzed: for every kind of file we read, a small sound folder and the code that reads it, as a user would.

A case damages one file of the folder and reads. It may succeed or raise a UserError; all else is a fault.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tests.fakedata.folders import fake_own
from tests.train import tiny


@dataclasses.dataclass(frozen=True)
class Target:
    """`make` writes the sound folder, once; `files` are damaged, one at a time; `read` gets the folder."""

    name: str
    make: Callable[[Path], None]
    files: tuple[str, ...]
    read: Callable[[Path], object]
    share: int = 2  # of the cases, relative to the others


def targets() -> list[Target]:
    return [*_texts(), *_images(), *_data(), *_models(), *_runs(), *_scenes()]


# --- configs and tables ---


_CONFIG = """seed: 1
data: {path: x, classes: null}
model: {name: crisp_nano, options: {prototypes: 4, dco: {skip: before}}}
loss: {}
schedule: {steps: 100, warmup: 5}
optimizer: {lr: 6e-5, betas: [0.9, 0.99]}
batch_size: 4
precision: fp32
"""
_TABLE = """title: one
set: {model: {name: "crisp_{size}"}}
rows:
  - {name: a, set: {seed: 1}}
  - {name: b, set: {seed: 2}, against: a, paper: {mIoU: 81.2}}
bench: {sizes: [64], batches: [1]}
"""
_CLASSES = "name,r,g,b,ignore\nmeadow,10,200,10,\nwater,0,0,250,\nroof,200,30,30,\nnone,0,0,0,1\n"
_SPLIT = "name,split\nsite0_part0,train\nsite0_part1,train\nsite1_part0,val\n"


def _texts() -> list[Target]:
    from crispseg.ablate.table import read_table
    from crispseg.data.classes import read_class_table
    from crispseg.data.split import read_split
    from crispseg.train.config import config_from, train_config

    def words(folder: Path) -> object:
        return config_from({}, (folder / "words.txt").read_bytes().decode("utf-8", "replace").splitlines())

    def write(name: str, text: str) -> Callable[[Path], None]:
        return lambda folder: (folder / name).write_text(text, encoding="utf-8") and None

    lines = "seed=1\nschedule.steps=3\nmodel.options={dim: 32}\noptimizer.betas=[0.9, 0.99]\ndata=x\n"
    yaml_classes = "classes:\n- {name: a, id: 0, colour: [1, 2, 3]}\n- {name: b, id: 1, colour: [4, 5, 6]}\n"
    names = ["site0_part0", "site0_part1", "site1_part0"]
    return [
        Target("config", write("config.yaml", _CONFIG), ("config.yaml",), lambda f: train_config(f / "config.yaml")),
        Target("words", write("words.txt", lines), ("words.txt",), words),
        Target("table", write("table.yaml", _TABLE), ("table.yaml",), lambda f: read_table(f / "table.yaml")),
        Target("classes.csv", write("c.csv", _CLASSES), ("c.csv",), lambda f: read_class_table(f / "c.csv")),
        Target("classes.yaml", write("c.yaml", yaml_classes), ("c.yaml",), lambda f: read_class_table(f / "c.yaml")),
        Target("split", write("split.csv", _SPLIT), ("split.csv",), lambda f: read_split(f / "split.csv", names)),
    ]


# --- images and masks ---


def _images() -> list[Target]:
    from crispseg.data.classes import ClassTable
    from crispseg.data.images import read_header, read_image, read_mask
    from crispseg.data.labels import encode

    ids = ClassTable(("a", "b", "c"))
    coloured = ClassTable(("a", "b", "c"), _COLOURS)

    def read(folder: Path) -> None:
        for path in sorted(folder.iterdir()):
            read_header(path)
            read_image(path)
            read_header(path.read_bytes(), path.name)

    def read_masks(folder: Path) -> None:
        for path in sorted(folder.iterdir()):
            table = coloured if path.name.startswith("colours") else ids
            encode(read_mask(path), table, path.name, unknown="ignore", tolerance=3)

    def each(name: str, make: Callable[[Path], None], reader: Callable[[Path], object] = read) -> Target:
        return Target(name, lambda folder: make(folder / name), (name,), reader)

    return [
        each("rgb.png", lambda p: _save(p, "uint8", 3)),
        each("palette.png", _palette),
        each("deep.png", lambda p: _raster(p, "uint16", 3, driver="PNG")),
        each("photo.jpg", lambda p: _save(p, "uint8", 3)),
        each("plain.tif", lambda p: _save(p, "uint8", 3)),
        each("bands.tif", lambda p: _raster(p, "uint16", 5)),
        each("float.tif", lambda p: _raster(p, "float32", 2, compress="deflate")),
        each("colours.png", _paint, read_masks),
        each("mask.png", lambda p: _save(p, "uint8", 1), read_masks),
        each("mask.tif", lambda p: _raster(p, "float32", 1), read_masks),
    ]


def _pixels(dtype: str, bands: int, side: int = 24) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(1).integers(0, 3, (side, side, bands)).astype(dtype)
    return values[..., 0] if bands == 1 else values


def _save(path: Path, dtype: str, bands: int) -> None:
    Image.fromarray(_pixels(dtype, bands)).save(path)


_COLOURS = ((0, 0, 0), (90, 90, 90), (200, 10, 10))


def _palette(path: Path) -> None:
    picture = Image.fromarray(_pixels("uint8", 1))
    picture.putpalette([value for colour in _COLOURS for value in colour])
    picture.save(path)


def _paint(path: Path) -> None:
    Image.fromarray(np.array(_COLOURS, np.uint8)[_pixels("uint8", 1)]).save(path)


def _raster(path: Path, dtype: str, bands: int, side: int = 24, **profile: Any) -> None:
    from tests.geo.rasters import write_raster

    pixels = _pixels(dtype, bands, side)
    write_raster(path, np.moveaxis(pixels, -1, 0) if pixels.ndim == 3 else pixels, **profile)


# --- data folders and archives ---


def _data() -> list[Target]:
    from crispseg.data.dataset import SegmentationDataset
    from crispseg.data.folder import open_folder
    from crispseg.data.inspection import inspect

    def own(folder: Path) -> None:
        fake_own(folder, colour=True, images=2, size=(16, 24))

    def look(folder: Path) -> None:
        str(inspect(folder))
        open_folder(folder).statistics()

    def cached(folder: Path) -> None:
        data = SegmentationDataset(open_folder(folder / "data"), "train", cache=folder / "cache")
        data.arrays[0]

    def make_cached(folder: Path) -> None:
        fake_own(folder / "data", images=4, size=(16, 24))
        cached(folder)

    folder_files = ("classes.csv", "images/site0_part0.png", "masks/site0_part1.png")
    return [
        Target("data folder", own, folder_files, look, share=1),
        Target("archive", _zipped, ("loveda.zip",), _prepare, share=1),
        Target("prepared folder", _prepared, ("out/dataset.json", "out/split.csv"), lambda f: _open(f / "out")),
        Target("journal of prepare", _half_prepared, ("out/.prepare.jsonl",), _prepare, share=1),
        Target("cached arrays", make_cached, ("cache/0", "cache/1"), cached, share=1),
    ]


def _open(folder: Path) -> None:
    from crispseg.data.folder import open_folder

    opened = open_folder(folder)
    opened.statistics(next(split for split, records in opened.splits.items() if records))


def _zipped(folder: Path) -> None:
    """LoveDA's layout of three tiny images in one archive."""
    with zipfile.ZipFile(folder / "loveda.zip", "w") as archive:
        for number, split in enumerate(("Train", "Train", "Val")):
            for part, values in (("images_png", _pixels("uint8", 3, 8)), ("masks_png", _pixels("uint8", 1, 8))):
                picture = folder / "x.png"
                Image.fromarray(values).save(picture)
                archive.write(picture, f"{split}/Urban/{part}/{number}.png")
                picture.unlink()


def _prepare(folder: Path) -> None:
    from crispseg.data.prepare import Choices, check, make_plan, prepare

    choices = Choices("full", allow_missing=True)
    plan = make_plan("loveda", folder / "loveda.zip", choices)
    check(plan)
    prepare(plan, folder / "out", choices)


def _prepared(folder: Path) -> None:
    _zipped(folder)
    _prepare(folder)


def _half_prepared(folder: Path) -> None:
    _prepared(folder)
    manifest = json.loads((folder / "out" / "dataset.json").read_text())
    lines = [{"kind": f"{manifest['dataset']} in the {manifest['layout']} layout"}, *manifest["images"][:2]]
    (folder / "out" / ".prepare.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "out" / "dataset.json").unlink()


# --- models and checkpoints ---


@functools.cache
def _small_model() -> Any:
    import crispseg
    from crispseg.models.base import ModelInfo

    model = crispseg.create_model("crisp_nano", num_classes=3, **tiny.OPTIONS)
    model.info = ModelInfo(
        ("a", "b", "c"), ((0, 0, 0), (9, 9, 9), (8, 8, 8)), ("red", "green", "blue"), (1.0,) * 3, (2.0,) * 3
    )
    return model


def _models() -> list[Target]:
    import torch

    from crispseg.models.folder import load
    from crispseg.models.vssd import create_backbone
    from crispseg.models.vssd_checkpoint import load_vssd_checkpoint

    options = {name: value for name, value in tiny.OPTIONS.items() if name in ("width", "depths", "heads", "state")}
    backbone = create_backbone("vssd_nano", **options)

    def public(folder: Path) -> None:
        torch.save({"model": {**backbone.state_dict(), "head.weight": torch.zeros(2, 3)}, "epoch": 3}, folder / "v.pth")

    return [
        Target(
            "model folder",
            lambda folder: _small_model().save(folder / "model"),
            ("model/config.json", "model/config.json", "model/model.safetensors"),
            lambda folder: load(folder / "model"),
            share=6,
        ),
        Target(
            "public checkpoint", public, ("v.pth",), lambda folder: load_vssd_checkpoint(backbone, folder / "v.pth")
        ),
    ]


# --- what runs leave ---


def _runs() -> list[Target]:
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

    opened = Opened(_small_model(), "run", folder / "run")
    training_notes(opened, open_data(str(folder / "data"), [opened]), None)


# --- scenes and maps ---


def _scenes() -> list[Target]:
    def scene(name: str, **profile: Any) -> Target:
        def make(folder: Path) -> None:
            _raster(folder / name, profile.pop("dtype", "uint8"), 3, 40, **profile)

        return Target(f"scene {name}", make, (name,), lambda folder: _read_scene(folder / name))

    def make_vrt(folder: Path) -> None:
        _raster(folder / "inner.tif", "uint8", 3, 40)
        (folder / "s.vrt").write_text(_VRT)

    return [
        scene("s.tif", tiled=True, blockxsize=16, blockysize=16, compress="deflate", crs="EPSG:32633"),
        scene("s.png", driver="PNG"),
        Target("scene s.vrt", make_vrt, ("s.vrt", "inner.tif"), lambda folder: _read_scene(folder / "s.vrt"), share=1),
        Target("class map", _class_map, ("map.tif",), _vectorize, share=1),
        Target("journal of predict", _half_predicted, _JOURNAL, _predict, share=1),
    ]


_VRT = "<VRTDataset rasterXSize='40' rasterYSize='40'>" + "".join(
    f"<VRTRasterBand dataType='Byte' band='{band}'><SimpleSource><SourceFilename relativeToVRT='1'>inner.tif"
    f"</SourceFilename><SourceBand>{band}</SourceBand></SimpleSource></VRTRasterBand>"
    for band in (1, 2, 3)
) + "</VRTDataset>"  # fmt: skip


def _read_scene(path: Path) -> None:
    """Open it for a model and read some windows, as tiles are read."""
    from tests.predict.standins import StandIn

    from crispseg.geo.scenes import Reading, open_scene
    from crispseg.predict.source import Window, read_reflected

    scene = open_scene(str(path), StandIn(), Reading())
    try:
        for top in (0, max(0, scene.source.height - 20)):
            read_reflected(scene.source, Window(top, 0, 32, 32))
    finally:
        scene.source.close()


def _class_map(folder: Path) -> None:
    names = {"CLASSES": json.dumps({"0": "a", "1": "b", "2": "c"})}
    _raster(folder / "map.tif", "uint8", 1, 24, tags=names, nodata=255, crs="EPSG:32633")


def _vectorize(folder: Path) -> None:
    from crispseg.errors import UserError
    from crispseg.geo.reader import open_raster
    from crispseg.geo.vectorize import vectorize_map

    with open_raster(str(folder / "map.tif")) as dataset:
        if dataset.width * dataset.height > 1 << 22:
            raise UserError("work of minutes")
    out = folder / "out.geojson"
    out.unlink(missing_ok=True)
    vectorize_map(str(folder / "map.tif"), str(out))


_JOURNAL = (".map.tif.crisp/job.json", ".map.tif.crisp/band-000000.z", ".map.tif.crisp/moves.json")


def _half_predicted(folder: Path) -> None:
    """A scene whose run was stopped after its first band; moves.json is what a run killed later would have left."""
    from crispseg.predict import scene as scenes

    _raster(folder / "scene.tif", "uint8", 3, 40)
    kept: dict[str, bytes] = {}
    make_files = scenes._make_files

    def stop(*args: Any) -> None:
        kept.update({path.name: path.read_bytes() for path in (folder / ".map.tif.crisp").iterdir()})
        make_files(*args)
        kept["moves.json"] = (folder / ".map.tif.crisp" / "moves.json").read_bytes()

    scenes._make_files = stop
    try:
        _predict(folder)
    finally:
        scenes._make_files = make_files
    (folder / "map.tif").unlink()
    (folder / ".map.tif.crisp").mkdir()
    for name, content in kept.items():
        if name != "moves.json":
            (folder / ".map.tif.crisp" / name).write_bytes(content)
    (folder / ".map.tif.crisp" / "moves.json").write_bytes(kept["moves.json"])


def _predict(folder: Path) -> None:
    from tests.predict.standins import StandIn

    from crispseg.geo.maps import Legend
    from crispseg.predict.engines import find_engine
    from crispseg.predict.scene import Request, Watcher, predict_scene
    from crispseg.predict.work import Settings

    model = StandIn()
    request = Request(Settings(tile=32, overlap=8, device="cpu"))
    target = folder / "map.tif"
    predict_scene(
        str(folder / "scene.tif"), target, model, Legend.of(model, "x"), request, find_engine("local"), Watcher()
    )
