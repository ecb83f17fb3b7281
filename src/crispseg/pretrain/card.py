"""What a finished pretraining says of its backbone, for the card that lies beside the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crispseg.models.backbone_folder import BackboneInfo
from crispseg.pretrain.config import PretrainConfig
from crispseg.pretrain.feed import LearningSet
from crispseg.pretrain.teacher import MEAN, STD

_LICENCE = "that of the pictures it was trained on; fill in"


def card_facts(
    config: PretrainConfig, sets: Sequence[LearningSet], started_from: str, scores: Mapping[str, float]
) -> BackboneInfo:
    return BackboneInfo(
        mean=MEAN,
        std=STD,
        training_data="; ".join(map(_pictures, sets)),
        teacher=config.teacher.build or "",
        recipe=_recipe(config, sets, started_from),
        licence=_LICENCE,
        scores=dict(scores),
        notes=_limits(sets, scores),
    )


def _pictures(one: LearningSet) -> str:
    kind = f"in {len(one.training.classes)} classes" if one.labelled else "without labels"
    back = f"; {len(one.held_back)} more kept back for scores" if one.held_back is not None else ""
    return f"{one.name} ({len(one.training)} pictures of {one.training.side} px {kind}{back})"


def _recipe(config: PretrainConfig, sets: Sequence[LearningSet], started_from: str) -> str:
    schedule, optimizer, sizes = config.schedule, config.optimizer, " then ".join(map(str, config.sizes))
    facts = [
        f"crisp pretrain, {_way(config, sets)}",
        f"{schedule.steps} steps of {config.batch_size} pictures of {sizes} px",
        f"AdamW lr {optimizer.lr:g}, {schedule.decay} decay, weight decay {optimizer.weight_decay:g}",
        f"EMA {config.ema:g}" if config.ema else "no EMA",
        f"{config.precision}, seed {config.seed}",
        f"started from {started_from}",
    ]
    return "; ".join(facts)


def _way(config: PretrainConfig, sets: Sequence[LearningSet]) -> str:
    """What was learnt: classes, a teacher's features, what two views of a picture have in common."""
    labelled, alone = ([one.name for one in sets if one.labelled is kind] for kind in (True, False))
    ways = [f"classes of {' and '.join(labelled)}"] if labelled else []
    if config.teacher.build:
        weight, scale = config.teacher.weight, config.teacher.scale
        ways.append(f"features of {config.teacher.build} (weight {weight:g}, pictures {scale:g} times as large)")
    elif alone:
        ways.append(f"two views of a picture alike (VICReg), of {' and '.join(alone)}")
    return " and ".join(ways)


def _limits(sets: Sequence[LearningSet], scores: Mapping[str, float]) -> str:
    seen = ", ".join(one.name for one in sets)
    judged = "The scores are of pictures kept back from the same sets" if scores else "Nothing was scored"
    return (
        f"A start for fine-tuning, not a classifier or a map maker. In this training it has seen {seen} alone, "
        f"three bands in 8 bits taken as red, green and blue; other bands are adapted. {judged}: what it gains in a "
        "segmentation has to be measured there."
    )
