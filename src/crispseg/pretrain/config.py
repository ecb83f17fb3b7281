"""Everything a pretraining run can be told, as frozen dataclasses; `crisp configs pretraining` explains each key."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from crispseg import config as configs
from crispseg.configs import find_config
from crispseg.errors import UserError
from crispseg.pretrain.changes import Changes, check_changes
from crispseg.train.config import Precision
from crispseg.train.optimizer import OptimizerConfig, check_optimizer
from crispseg.train.schedule import ScheduleConfig, check_schedule


@dataclasses.dataclass(frozen=True)
class SetConfig:
    """Pictures to learn from: class folders, npz shards, or (without labels) any folder of images."""

    path: str
    name: str | None = None  # none: the folder's
    labels: bool = True  # false: the pictures alone
    share: float = 1.0  # of the batch, relative to the other sets'
    weight: float = 1.0  # of its loss
    side: int | None = None  # pictures are kept so large; none: 64 from shards, else 256
    aerial: bool = False  # seen from above: any quarter turn and either flip is as good
    area: tuple[float, float] | None = None  # share of the picture that a crop takes; none: changes.area


@dataclasses.dataclass(frozen=True)
class TeacherConfig:
    """Another network whose features are to be predicted."""

    build: str | None = None  # package.module:function, which returns a torch module; none: no teacher
    scale: float = 2.0  # the teacher sees the pictures so much larger
    weight: float = 1.0  # of the features' loss beside the labels'


@dataclasses.dataclass(frozen=True)
class ViewsConfig:
    """How pictures without labels are learnt from: two views of a picture are to have the same embedding (VICReg)."""

    width: int = 512  # of the embedding
    alike: float = 25.0  # weight of the distance of a picture's two embeddings
    varied: float = 25.0  # of what their numbers fall short of a standard deviation of one over the batch
    apart: float = 1.0  # of their covariances


@dataclasses.dataclass(frozen=True)
class BackboneConfig:
    name: str = "vssd_nano"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # e.g. {fusion: raw}
    weights: str | None = None  # start from a backbone, by its name or folder, or a pretraining run's; none: noise


@dataclasses.dataclass(frozen=True)
class PretrainConfig:
    sets: tuple[SetConfig, ...] = ()
    model: BackboneConfig = dataclasses.field(default_factory=BackboneConfig)
    changes: Changes = dataclasses.field(default_factory=Changes)
    teacher: TeacherConfig = dataclasses.field(default_factory=TeacherConfig)
    views: ViewsConfig = dataclasses.field(default_factory=ViewsConfig)
    smoothing: float = 0.1  # label smoothing of the cross-entropy
    optimizer: OptimizerConfig = dataclasses.field(default_factory=lambda: OptimizerConfig(lr=1e-3))
    schedule: ScheduleConfig = dataclasses.field(default_factory=lambda: ScheduleConfig(decay="cosine"))
    sizes: tuple[int, ...] = (64,)  # sides of the network's input, one after the other
    size_shares: tuple[float, ...] | None = None  # of all steps, for each size; none: equal
    batch_size: int | None = None  # pictures per step, over all processes; none: 1024 on a GPU, 64 on a CPU
    precision: Precision | None = None  # none: bf16 on a GPU, fp32 on a CPU
    ema: float = 0.999  # decay of the moving average of the weights, which is what is kept; 0 is off
    sync_batchnorm: bool = True
    graph: bool | None = None  # forward and backward as one CUDA graph; none: where that is possible
    cache: str | None = None  # a folder for decoded pictures, for other runs to use
    hold: bool | None = None  # all pictures decoded in memory; none: where they take 8 GiB at most
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    workers: int | None = None  # processes that decode; none: chosen for the machine
    out: str | None = None  # run folder; none: runs/SET-BACKBONE-NUMBER
    score_every: int | None = None  # steps between scores; none: five in all
    score_images: int = 10_000  # at most so many training and kept-back pictures make the scores
    save_every: int = 500
    log_every: int = 20
    max_minutes: float | None = None


# What a resumed run may do otherwise: none of these change its weights (data is where the same pictures lie now).
MACHINE_KEYS = ("data", "device", "workers", "hold", "cache", "max_minutes", "save_every", "log_every", "graph")


def pretrain_config(path: str | Path | None, words: Iterable[str] = ()) -> PretrainConfig:
    """A config from a YAML file (or none) and `key=value` words on top."""
    return config_from({} if path is None else configs.read_yaml(find_config(path)), words)


def config_from(values: Mapping[str, Any], words: Iterable[str] = ()) -> PretrainConfig:
    over = configs.parse_overrides([_spelt_out_word(word) for word in words])
    spelt = _with_places(configs.merge(_spelt_out(values), over))
    parts = configs.checked(_Parts, spelt, "the config")
    optimizer = {"lr": 1e-3, **parts.get("optimizer", {})}
    schedule = {"decay": "cosine", **parts.get("schedule", {})}
    for given, dropped in (("steps", "epochs"), ("epochs", "steps")):  # a word on the command line beats the file's
        if given in over.get("schedule", {}) and dropped not in over["schedule"]:
            schedule[dropped] = None
    config = configs.build(PretrainConfig, {**spelt, "optimizer": optimizer, "schedule": schedule})
    check(config)
    return config


def resumed_config(values: Mapping[str, Any], words: Iterable[str]) -> PretrainConfig:
    """A run's config with words on top. data=FOLDER is where its pictures lie now; of several sets, what holds them."""
    places = [word.partition("=")[2] for word in words if word.partition("=")[0] == "data"]
    config = config_from(values, [word for word in words if word.partition("=")[0] != "data"])
    if not places:
        return config
    now = [Path(places[-1]) / (Path(one.path).name if len(config.sets) > 1 else "") for one in config.sets]
    sets = [dataclasses.replace(one, path=str(path)) for one, path in zip(config.sets, now, strict=True)]
    return dataclasses.replace(config, sets=tuple(sets))


class _Parts(TypedDict, total=False):
    optimizer: dict[str, Any]
    schedule: dict[str, Any]


class _Place(TypedDict):
    path: str


_OF_THE_SET = ("name", "labels", "side", "aerial", "area")  # keys of SetConfig that the only set may have as words


def _spelt_out(values: Mapping[str, Any]) -> dict[str, Any]:
    """model=NAME stands for model.name."""
    return {k: {"name": v} if k == "model" and isinstance(v, str) else v for k, v in values.items()}


def _spelt_out_word(word: str) -> str:
    key, _, text = word.partition("=")
    return f"model.name={text}" if key == "model" and not text.startswith("{") else word


def _with_places(values: Mapping[str, Any]) -> dict[str, Any]:
    """data=FOLDER stands for one set; beside sets it says where their folders lie. What is said of a set without naming
    one, such as labels=false, is said of the only one."""
    spelt = dict(values)
    said = {key: spelt.pop(key) for key in _OF_THE_SET if key in spelt}
    if "data" not in spelt and not said:
        return spelt
    place = str(spelt.pop("data", ""))
    one_set = [{"path": "."}] if place else []
    given: list[_Place] = configs.checked(list[_Place], spelt.get("sets") or one_set, "sets")
    if said and len(given) > 1:
        key = next(iter(said))
        raise UserError(
            f"{key} is said of one set, but the config has {len(given)}: give it in each set it is meant for"
        )
    spelt["sets"] = [{**one, **said, "path": str(Path(place) / one["path"])} for one in given]
    return spelt


def check(config: PretrainConfig) -> None:
    """Refuse values that no run can use, each with its key."""
    positive = {
        "batch_size": config.batch_size,
        "score_every": config.score_every,
        "score_images": config.score_images,
        "save_every": config.save_every,
        "log_every": config.log_every,
        "max_minutes": config.max_minutes,
        "teacher.scale": config.teacher.scale,
        "views.width": config.views.width,
        **{f"sets[{i}].share": one.share for i, one in enumerate(config.sets)},
        **{f"sets[{i}].side": one.side for i, one in enumerate(config.sets)},
        **{f"size_shares[{i}]": share for i, share in enumerate(config.size_shares or ())},
        **{f"sizes[{i}]": size for i, size in enumerate(config.sizes)},
    }
    configs.check_positive(positive)
    check_optimizer(config.optimizer)
    check_schedule(config.schedule, config.optimizer.lr)
    configs.check_between({"workers": config.workers or 0}, 0, math.inf)
    check_changes(config.changes)
    _check_weights(config)
    if not config.sets:
        raise UserError("nothing to learn from: give data=FOLDER, or a config with sets")
    if not config.sizes:
        raise UserError("sizes is empty: give at least one, such as sizes=[64]")
    if config.size_shares is not None and len(config.size_shares) != len(config.sizes):
        raise UserError(f"size_shares has {len(config.size_shares)} numbers for {len(config.sizes)} sizes")
    if not 0 <= config.ema < 1:
        raise UserError(f"ema must be at least 0 and below 1, not {config.ema}")


def _check_weights(config: PretrainConfig) -> None:
    views = {f"views.{name}": getattr(config.views, name) for name in ("alike", "varied", "apart")}
    weights = {"teacher.weight": config.teacher.weight, **views}
    weights |= {f"sets[{i}].weight": one.weight for i, one in enumerate(config.sets)}
    configs.check_between(weights, 0, math.inf)
    taught = config.teacher.build is not None and config.teacher.weight > 0
    if config.sets and not taught and not any(one.weight for one in config.sets):
        raise UserError("the weights of all sets are 0, so that nothing would be learnt; give one of them a weight")
    configs.check_between({"smoothing": config.smoothing}, 0, 1)
    for i, one in enumerate(config.sets):
        if one.area is not None:
            configs.check_range(f"sets[{i}].area", one.area, 1)
