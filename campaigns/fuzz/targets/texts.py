"""Configs, tables of experiments, class tables and splits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from campaigns.fuzz.targets.base import Target

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


def targets() -> list[Target]:
    from crispseg.ablate.plan import read_data_sets
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
    json_classes = '[{"name": "a", "id": 0, "colour": [1, 2, 3]}, {"name": "b", "id": 1, "colour": [4, 5, 6]}]'
    names = ["site0_part0", "site0_part1", "site1_part0"]
    return [
        Target("config", write("config.yaml", _CONFIG), ("config.yaml",), lambda f: train_config(f / "config.yaml")),
        Target("words", write("words.txt", lines), ("words.txt",), words),
        Target("table", write("table.yaml", _TABLE), ("table.yaml",), lambda f: read_table(f / "table.yaml")),
        Target("classes.csv", write("c.csv", _CLASSES), ("c.csv",), lambda f: read_class_table(f / "c.csv")),
        Target("classes.yaml", write("c.yaml", yaml_classes), ("c.yaml",), lambda f: read_class_table(f / "c.yaml")),
        Target("classes.json", write("c.json", json_classes), ("c.json",), lambda f: read_class_table(f / "c.json"), 2),
        Target("data of a table", write("d.yaml", _CONFIG), ("d.yaml",), lambda f: read_data_sets([str(f / "d.yaml")])),
        Target("split", write("split.csv", _SPLIT), ("split.csv",), lambda f: read_split(f / "split.csv", names)),
    ]
