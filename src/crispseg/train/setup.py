"""From a config to what training needs: opened data, the config with every choice made, and the model."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from crispseg.config import check_between
from crispseg.data.bands import check_same_bands, settled_bands
from crispseg.data.dataset import SegmentationDataset, check_bands
from crispseg.data.folder import Folder, open_folder
from crispseg.data.joined import Companion, Groups, JoinedSet, joined_statistics, understand
from crispseg.data.manifest import MANIFEST, Statistics
from crispseg.data.shares import SplitShares, read_all_labels, split_shares
from crispseg.errors import UserError
from crispseg.models.base import ModelInfo, SegmentationModel
from crispseg.models.omp import SCALES, OMPHead
from crispseg.models.registry import create_model
from crispseg.threads import available_cores
from crispseg.train.config import DataConfig, Precision, TrainConfig
from crispseg.train.distributed import Processes
from crispseg.train.start import SCRATCH, default_weights, start_from

_ASKED = 40  # of many images, so many are asked for the size of their pixels
_LR = 6e-4
_PUBLIC_LR = 6e-5  # the paper's, for a checkpoint of a long training on ImageNet
_MODEL = {"cuda": "crisp_tiny", "cpu": "crisp_nano"}
_BATCH = {"cuda": 16, "cpu": 4}
_STEPS = {"cuda": 4000, "cpu": 300}  # some ten minutes, on a present-day GPU and on two cores
_VALIDATIONS = {"cuda": 10, "cpu": 3}
_LARGEST_CROP = {"cuda": 1 << 30, "cpu": 256}
_STRIDE = 32  # of the coarsest features
_MOST_PADDING = 8  # a crop may be so many times as long as the longest image, which may be enlarged into it


def choose_device(wanted: str) -> str:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("device is cuda, but torch finds no CUDA device here; use device=cpu")
    return ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted


def choose_workers(config: TrainConfig, device: torch.device) -> int:
    """Loader processes of each training process; on a CPU the network is so slow that none are needed."""
    if config.workers is not None:
        return config.workers
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(16, max(1, available_cores() // local)) if device.type == "cuda" else 0


def open_data(config: TrainConfig, recorded: Mapping[str, str] | None = None) -> Folder:
    """The data folder, with the splits and the bands that training needs. A run that goes on keeps the split that was
    made for it and `recorded`, whatever this version would make."""
    data = config.data
    if not data.path:
        raise UserError("no data: give data=FOLDER, a folder with images/ and masks/")
    split = data.split if data.split is not None or data.protocol is not None else recorded
    folder = open_folder(data.path, protocol=data.protocol, classes=data.classes, split=split)
    folder.records("train")
    folder.records("val")
    if bands := settled_bands(folder, data.bands):
        check_bands(folder, len(bands), f"a config with data.bands {', '.join(bands)}")
    return folder


def read_labels(folder: Folder, processes: Processes) -> SplitShares:
    """Read every mask that the run will need, each process its part: a fault is told now and not hours later."""
    splits = dict.fromkeys(("train", "val", folder.protocol.scored_split))
    read_all_labels(folder, splits, processes.gather, slice(processes.rank, None, processes.count))
    return split_shares(folder)


def complete(config: TrainConfig, folder: Folder, device: str) -> TrainConfig:
    """The config with everything chosen that was left open, so that the run can be repeated elsewhere."""
    weights, classes = config.loss.class_weights, folder.protocol.classes
    if weights is not None and len(weights) != len(classes):
        raise UserError(f"loss.class_weights has {len(weights)} numbers, but there are {len(classes)} classes")
    name = config.model.name or _MODEL[device]
    start = config.model.weights or default_weights(name, config.model.options)
    lr = config.optimizer.lr or (_PUBLIC_LR if start != SCRATCH and Path(start).is_file() else _LR)
    batch_size = config.batch_size or _BATCH[device]
    crop = config.crop or _choose_crop(folder, device)
    _refuse_padding(crop, folder)
    chosen = dataclasses.replace(
        config,
        data=_with_whole_paths(_with_true_bands(config.data, folder)),
        loss=dataclasses.replace(config.loss, groups=open_companions(config, folder)[1]),
        model=dataclasses.replace(config.model, name=name, weights=start),
        optimizer=dataclasses.replace(config.optimizer, lr=lr),
        batch_size=batch_size,
        crop=crop,
        augment=dataclasses.replace(config.augment, crop=crop),
        precision=config.precision or choose_precision(device),
    )
    steps = config.schedule.steps or _STEPS[device]
    if config.schedule.epochs is not None:
        steps = math.ceil(config.schedule.epochs * len(training_set(chosen, folder)) / batch_size)
    warmup = min(1500, steps // 20) if config.schedule.warmup is None else config.schedule.warmup
    return dataclasses.replace(
        chosen,
        schedule=dataclasses.replace(config.schedule, steps=steps, epochs=None, warmup=warmup),
        val_every=config.val_every or math.ceil(steps / _VALIDATIONS[device]),
    )


def _with_true_bands(data: DataConfig, folder: Folder) -> DataConfig:
    return data if data.bands is None else dataclasses.replace(data, bands=settled_bands(folder, data.bands))


def say_bands(asked: TrainConfig, completed: TrainConfig) -> str:
    """A line where the images have other bands than the config took for granted, else nothing."""
    wanted, found = asked.data.bands, completed.data.bands
    if not wanted or not found or wanted == found:
        return ""
    usual, own = ", ".join(wanted), ", ".join(found)
    return f"bands are {own}, as {MANIFEST} in {completed.data.path} says; the config's {usual} are only the usual ones"


def _with_whole_paths(data: DataConfig) -> DataConfig:
    also = tuple(dataclasses.replace(one, path=str(Path(one.path).resolve())) for one in data.also)
    return dataclasses.replace(data, path=str(Path(data.path).resolve()), also=also)


def _refuse_padding(crop: int, folder: Folder) -> None:
    longest = _longest_side(folder)
    if crop > _MOST_PADDING * longest:
        raise UserError(
            f"crop {crop} is {crop / longest:.0f} times as long as the longest training image ({longest} px): crops "
            f"would be nothing but padding; give at most {_MOST_PADDING * longest}, better {longest} or less"
        )


def _longest_side(folder: Folder) -> int:
    return max(max(record.height, record.width) for record in folder.records("train"))


def _choose_crop(folder: Folder, device: str) -> int:
    """The protocol's crop, but no more than the machine bears or the largest image fills."""
    filled = math.ceil(_longest_side(folder) / _STRIDE) * _STRIDE
    return min(folder.protocol.crop, _LARGEST_CROP[device], filled)


def choose_precision(device: str) -> Precision:
    if device != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported() else "fp16"


def training_set(config: TrainConfig, folder: Folder) -> SegmentationDataset:
    first = SegmentationDataset(folder, "train", config.augment, seed=config.seed, cache=config.data.cache)
    companions = open_companions(config, folder)[0]
    return JoinedSet(first, companions) if companions else first


def open_companions(config: TrainConfig, folder: Folder) -> tuple[list[Companion], Groups]:
    """The sets that train along, and the groups of classes their labels may stand for."""
    companions, groups = list[Companion](), Groups()
    for number, one in enumerate(config.data.also, 1):
        other = open_folder(one.path, protocol=one.protocol, classes=one.classes, split=one.split)
        check_bands(other, folder.bands, f"a training on {folder.root}")
        check_same_bands(folder, other)
        if other.dtype != folder.dtype:
            raise UserError(
                f"the images of {other.root} are of {other.dtype}, those of {folder.root} of {folder.dtype}"
            )
        lookup, groups = understand(other, one.meaning, folder.protocol.classes, groups)
        augment = config.augment if one.scale is None else dataclasses.replace(config.augment, scale=one.scale)
        data = SegmentationDataset(other, "train", augment, seed=config.seed + number, cache=config.data.cache)
        companions.append(Companion(data, one.share, lookup))
    return companions, groups


def validation_set(config: TrainConfig, folder: Folder) -> SegmentationDataset:
    return SegmentationDataset(folder, "val", cache=config.data.cache)


def scoring_split(config: TrainConfig, folder: Folder) -> str:
    """The split that the run's last scores are made on."""
    return folder.protocol.scored_split if config.score == "protocol" else "val"


def scoring_set(config: TrainConfig, folder: Folder) -> SegmentationDataset:
    split = scoring_split(config, folder)
    folder.records(split)  # refused before the training, not after it
    return SegmentationDataset(folder, split, cache=config.data.cache)


def build_model(config: TrainConfig, folder: Folder) -> SegmentationModel:
    """The model with fresh weights (or those of `model.weights`) and its card, but for the scores."""
    assert config.model.name is not None
    torch.manual_seed(config.seed)
    protocol = folder.protocol
    model = create_model(config.model.name, len(protocol.classes), folder.bands, **config.model.options)
    if config.loss.mutual and not model.matches_softly:
        raise UserError(
            f"loss.mutual needs a model with soft matching: {model.name} has none; give a crisp model with "
            "model.options.matching=lse, or loss.mutual=0"
        )
    head = getattr(model, "head", None)
    if config.loss.mutual and isinstance(head, OMPHead) and head.config.prototypes == 1:
        raise UserError(
            "loss.mutual spreads a class's pixels over its prototypes, and there is one: give "
            "model.options.prototypes=2 or more, or loss.mutual=0"
        )
    if isinstance(head, OMPHead) and config.model.weights is not None:  # none: a checkpoint's follow
        check_between({"model.options.logit_scale": head.config.logit_scale}, *SCALES)
    statistics, described = _facts(config, folder)
    ground = _ground(config, folder)
    model.info = ModelInfo(
        classes=protocol.classes,
        palette=protocol.palette,
        bands=settled_bands(folder, config.data.bands) or ground.bands,
        mean=statistics.mean,
        std=statistics.std,
        dtype=folder.dtype,
        resolution=ground.middle,
        resolutions=_seen_resolutions(config, ground),
        training_data=described,
    )
    if config.model.weights and config.model.weights != SCRATCH:
        start_from(model, Path(config.model.weights), folder)
    model.info = dataclasses.replace(model.info, started_from=model.origin)
    return model


class _Ground(NamedTuple):
    """The pixels' size in metres, smallest, largest and in the middle, and the bands' names."""

    sizes: tuple[float, float] | None
    middle: float | None
    bands: tuple[str, ...]


def _ground(config: TrainConfig, folder: Folder) -> _Ground:
    """What the protocol says, or else GeoTIFFs themselves where rasterio is there to read them."""
    known = config.data.resolution or folder.protocol.resolution
    tifs = [str(record.image) for record in folder.records("train") if record.image.suffix.lower() in (".tif", ".tiff")]
    sizes, middle = None if known is None else (known, known), known
    bands: tuple[str, ...] = ()
    if tifs and importlib.util.find_spec("rasterio") is not None:
        from crispseg.geo.ground import read_ground

        found = read_ground(tifs[:: max(1, len(tifs) // _ASKED)])
        bands = found.bands if len(found.bands) == folder.bands else ()
        if known is None:
            sizes, middle = found.sizes, found.middle
    return _Ground(sizes, middle, bands)


def _seen_resolutions(config: TrainConfig, ground: _Ground) -> tuple[float, float] | None:
    """Training shows images larger and smaller: a scale of 2 makes pixels of half the size."""
    if ground.sizes is None:
        return None
    smaller, larger = config.augment.scale
    return ground.sizes[0] / larger, ground.sizes[1] / smaller


def _facts(config: TrainConfig, folder: Folder) -> tuple[Statistics, str]:
    """Mean and standard deviation of the training images, and what they are, over all sets."""
    companions = open_companions(config, folder)[0]
    folders = [folder, *(companion.data.folder for companion in companions)]
    shares = [1.0, *(companion.share for companion in companions)]
    parts = [(one.statistics("train"), share) for one, share in zip(folders, shares, strict=True)]
    described = [
        f"{one.protocol.name} #{one.protocol.hash}, train split ({len(one.records('train'))} images)" for one in folders
    ]
    return parts[0][0] if len(parts) == 1 else joined_statistics(parts), "; ".join(described)
