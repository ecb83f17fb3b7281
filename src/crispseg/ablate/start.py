"""What the rows of a table start from: all from the same, or their differences would be those of the starts.

A pretrained backbone is taken only where it computes what the backbone of every row does. The same tensors in another
function (without DCO, say) can be a worse start for that row than for the others, so then all start from random
weights, and so do tables with networks that no backbone comes along for. A start that somebody names is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from crispseg.models.pretrained import matching_model
from crispseg.models.shipped import list_backbones_with_weights, list_shipped
from crispseg.train.config import ModelConfig, TrainConfig
from crispseg.train.start import SCRATCH, default_backbone

_NAMED = 3  # rows that a line still names one by one
_WHY_RANDOM = "no pretrained backbone that comes along computes what the backbones of all rows do"


@dataclasses.dataclass(frozen=True)
class Start:
    """Of the rows of one table on one data set."""

    weights: Mapping[str, str]  # by row, as model.weights
    asked: bool  # whether somebody named it, for all rows
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = _by_start(self.weights)
        if len(rows) > 1:
            return "; ".join(f"{named(names)} from {spoken(word)}" for word, names in rows.items())
        (word,) = rows
        why = "as asked" if self.asked else _WHY_RANDOM if word == SCRATCH else ""
        return f"all rows from {spoken(word)}" + (f" ({why})" if why else "")


def table_start(rows: Mapping[str, TrainConfig]) -> Start:
    """The start of each row, by its name; given the rows' configs, all of one data set."""
    left_open = [config.model for config in rows.values() if not config.model.weights]
    found = {_backbone(model) for model in left_open}
    shared = found.pop() if len(found) == 1 else SCRATCH
    weights = {name: config.model.weights or shared for name, config in rows.items()}
    return Start(weights, not left_open, (*_warn_of_differences(weights), *_warn_of_other_functions(rows)))


def starting_from(config: TrainConfig, weights: str) -> TrainConfig:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, weights=weights))


def spoken(weights: str) -> str:
    """A word of model.weights in a sentence."""
    if weights == SCRATCH:
        return "random weights"
    return f"the pretrained backbone {weights}" if weights in list_backbones_with_weights() else weights


def _backbone(model: ModelConfig) -> str:
    """What comes along for a row; a model that is left to the machine may be of any size."""
    return SCRATCH if model.name is None else default_backbone(model.name, model.options)


def _by_start(weights: Mapping[str, str]) -> dict[str, list[str]]:
    return {word: [name for name, own in weights.items() if own == word] for word in dict.fromkeys(weights.values())}


def _warn_of_differences(weights: Mapping[str, str]) -> list[str]:
    rows = _by_start(weights)
    if len(rows) == 1:
        return []
    starts = ", ".join(f"{spoken(word)} ({named(names)})" for word, names in rows.items())
    return [f"rows start differently, so their differences are not of their settings alone: {starts}"]


def _warn_of_other_functions(rows: Mapping[str, TrainConfig]) -> list[str]:
    """A start by name gives a row all the tensors that fit, whatever it computes with them."""
    other: dict[str, list[str]] = {}
    for name, config in rows.items():
        word = config.model.weights
        if config.model.name is None or word is None:
            continue
        backbone, whole = word in list_backbones_with_weights(), word in list_shipped()
        if (backbone and _backbone(config.model) != word) or (
            whole and matching_model(config.model.name, config.model.options) != word
        ):
            other.setdefault(word, []).append(name)
    return [
        f"{word} was trained as another network than {named(names)}: it may suit some rows better than others"
        for word, names in other.items()
    ]


def named(names: Sequence[str]) -> str:
    """Rows in a sentence, the first few of many."""
    shown = ", ".join(repr(name) for name in names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
