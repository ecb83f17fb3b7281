"""Everything a training run can be told, as frozen dataclasses; `crisp configs default` explains each key."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from crispseg import config as configs
from crispseg.configs import find_config
from crispseg.data.transforms import Augmentation, check_augmentation
from crispseg.errors import UserError
from crispseg.losses import LossConfig
from crispseg.train.optimizer import OptimizerConfig, check_optimizer
from crispseg.train.schedule import ScheduleConfig, check_schedule
from crispseg.train.track import check_names

Precision = Literal["fp32", "bf16", "fp16"]


@dataclasses.dataclass(frozen=True)
class AlsoConfig:
    """Another data set that trains along, in the classes of the first."""

    path: str
    protocol: str | None = None
    classes: str | None = None
    split: str | None = None
    meaning: dict[str, Any] = dataclasses.field(
        default_factory=dict
    )  # its class: one of the first set's, several, null
    share: float = 1.0  # of the windows, beside the first set's 1
    scale: tuple[float, float] | None = None  # none: augment.scale


@dataclasses.dataclass(frozen=True)
class DataConfig:
    path: str = ""  # folder with images/ and masks/: your own, or one made by `crisp prepare`
    protocol: str | None = None  # e.g. potsdam/paper5; none: the folder's own
    classes: str | None = None  # class table: a file, or a known set's name; none: the folder's own
    split: str | None = None  # a split.csv that is not in the folder
    resolution: float | None = None  # metres per pixel; none: the protocol's, or what GeoTIFFs say of themselves
    bands: tuple[str, ...] | None = None  # names of the bands the images must have; none: whatever they have
    also: tuple[AlsoConfig, ...] = ()  # other sets that train along; the first alone validates
    cache: str | None = None  # folder for decoded images, when they do not fit in memory


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    name: str | None = None  # none: crisp_tiny on a GPU, crisp_nano on a CPU
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # e.g. {prototypes: 4}
    # start from a backbone (by name or folder), a model folder, a public VSSD checkpoint or a rival's authors'; none:
    # what comes along for the model (the same network trained whole, or else its backbone), where there is one; "none":
    # random weights
    weights: str | None = None


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    loss: LossConfig = dataclasses.field(default_factory=LossConfig)
    augment: Augmentation = dataclasses.field(default_factory=Augmentation)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = dataclasses.field(default_factory=ScheduleConfig)
    batch_size: int | None = None  # images per step, over all processes; none: 16 on a GPU, 4 on a CPU
    accumulate: int = 1  # parts a step's batch is worked through in, to save memory
    crop: int | None = None  # side of the training crops; none: the protocol's, 256 at most on a CPU
    precision: Precision | None = None  # none: bf16 on a GPU, fp32 on a CPU
    ema: float = 0.0  # decay of the moving average of the weights; 0 is off
    sync_batchnorm: bool = True  # BatchNorm over the batches of all processes
    find_unused: bool = False  # for models with parameters that never run, on several processes
    compile: bool = False  # torch.compile
    graph: bool | None = None  # forward and backward as one CUDA graph; none: where that is possible
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    workers: int | None = None  # loader processes; none: chosen for the machine
    out: str | None = None  # run folder; none: runs/DATA-MODEL-NUMBER
    val_every: int | None = None  # steps between validations; none: ten in all, three on a CPU
    val_images: int | None = None  # validate on the first few only; none: all
    save_every: int = 200  # steps between checkpoints, beside those at validations
    log_every: int = 10  # steps between records of the loss
    score: Literal["val", "protocol"] = "val"  # what the end is scored on: val, or the protocol's scoring split
    samples: int = 4  # validation images drawn as pictures
    track: str | None = None  # tensorboard, mlflow, wandb, several with commas, or "none"; none: tensorboard if there
    max_minutes: float | None = None  # stop then, as on SIGTERM: save, and say how to resume


# What a resumed run may do otherwise: none of these change its weights (data is where the same images lie now).
MACHINE_KEYS = (
    "data",
    "data.cache",
    "device",
    "workers",
    "max_minutes",
    "save_every",
    "log_every",
    "samples",
    "track",
    "compile",
    "graph",
)
_SHORTHAND = {"data": "path", "model": "name"}  # data=FOLDER stands for data.path=FOLDER


def train_config(path: str | Path | None, words: Iterable[str] = ()) -> TrainConfig:
    """A config from a YAML file or a name of `crisp configs` (or none), and `key=value` words on top."""
    values = {} if path is None else _spelt_out(configs.read_yaml(find_config(path)))
    return config_from(values, words)


def config_from(
    values: Mapping[str, Any], words: Iterable[str] = (), settings: Mapping[str, Any] | None = None
) -> TrainConfig:
    """A config from plain values, with `key=value` words or `settings` (whose keys may have dots) on top."""
    over = configs.parse_overrides([_spell_out_word(word) for word in words])
    for key, value in (settings or {}).items():
        over = configs.merge(over, _spelt_out(configs.nested(key, value)))
    config = configs.build(TrainConfig, configs.merge(_spelt_out(values), over))
    check(config)
    return config


def _spelt_out(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: {_SHORTHAND[k]: v} if k in _SHORTHAND and isinstance(v, str) else v for k, v in values.items()}


def _spell_out_word(word: str) -> str:
    key, _, text = word.partition("=")
    return f"{key}.{_SHORTHAND[key]}={text}" if key in _SHORTHAND and not text.startswith("{") else word


def check(config: TrainConfig) -> None:
    """Refuse values that no run can use, each with its key."""
    positive = {
        "batch_size": config.batch_size,
        "accumulate": config.accumulate,
        "crop": config.crop,
        "val_every": config.val_every,
        "val_images": config.val_images,
        "save_every": config.save_every,
        "log_every": config.log_every,
        "max_minutes": config.max_minutes,
        "data.resolution": config.data.resolution,
    }
    configs.check_positive(positive)
    _check_loss(config.loss)
    check_optimizer(config.optimizer)
    check_schedule(config.schedule, config.optimizer.lr)
    check_augmentation(config.augment)
    configs.check_between({"workers": config.workers or 0}, 0, math.inf)
    if config.augment.crop not in (Augmentation.crop, config.crop):
        raise UserError("set crop, not augment.crop")
    check_names(config.track)
    for number, one in enumerate(config.data.also):
        if one.share <= 0:
            raise UserError(f"data.also[{number}].share must be more than 0, not {one.share}")
        if one.scale is not None:
            configs.check_range(f"data.also[{number}].scale", one.scale)
    if config.data.also and config.loss.class_weights is not None:
        raise UserError("loss.class_weights does not go with data.also: a label there may stand for several classes")
    if not 0 <= config.ema < 1:
        raise UserError(f"ema must be at least 0 and below 1, not {config.ema}")


def _check_loss(loss: LossConfig) -> None:
    weights = {"dice": loss.dice, "auxiliary": loss.auxiliary, "orth": loss.orth, "margin": loss.margin}
    weights["mutual"] = loss.mutual
    configs.check_between({f"loss.{key}": value for key, value in weights.items()}, 0, math.inf)
    configs.check_between({"loss.smoothing": loss.smoothing}, 0, 1)
    classes = {f"loss.class_weights[{number}]": weight for number, weight in enumerate(loss.class_weights or ())}
    configs.check_between(classes, 0, math.inf)
    if classes and not any(classes.values()):
        raise UserError("loss.class_weights are all 0, so that nothing would be learnt; give each class a weight")
    configs.check_between({"loss.delta": loss.delta}, 0, 2)  # cosines above 1 - delta are penalised, and end at -1


def write_config(config: TrainConfig, path: Path) -> None:
    import yaml

    from crispseg.files import write_text

    write_text(path, yaml.safe_dump(configs.to_dict(config), sort_keys=False, allow_unicode=True))
