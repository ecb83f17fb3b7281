"""The learning rate as a pure function of the step: warm-up, then poly, cosine, restarts or constant."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from crispseg.config import check_between, check_positive
from crispseg.errors import UserError


@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
    steps: int | None = None  # optimiser steps in all; none (and no epochs): chosen for the machine
    epochs: float | None = None  # instead of steps: passes over the training images
    warmup: int | None = None  # steps of linear warm-up; none: a twentieth of all, 1500 at most
    decay: Literal["poly", "cosine", "restarts", "constant"] = "poly"
    power: float = 0.9  # of poly
    min_lr: float = 0.0  # where the decay ends
    first_cycle: float = 0.0  # restarts: share of all steps in the first cosine cycle
    cycle_factor: float = 2.0  # restarts: how much longer each cycle is than the one before


def check_schedule(config: ScheduleConfig, peak: float | None) -> None:
    """Refuse values that no training can use, each with its key; `peak` is the learning rate, if it is said."""
    check_positive({"schedule.steps": config.steps, "schedule.epochs": config.epochs})
    if config.steps is not None and config.epochs is not None:
        raise UserError("give schedule.steps or schedule.epochs, not both")
    check_between({"schedule.warmup": config.warmup or 0, "schedule.power": config.power}, 0, math.inf)
    check_between({"schedule.min_lr": config.min_lr}, 0, peak or math.inf)
    if config.decay == "restarts":
        if not 0 < config.first_cycle <= 1:
            raise UserError("schedule.decay restarts needs schedule.first_cycle, the first cycle's share of all steps")
        _check_cycles(config.first_cycle, config.cycle_factor)


def _check_cycles(first: float, factor: float) -> None:
    """Cycles that get shorter must still reach the end: together they last first / (1 - factor)."""
    check_positive({"schedule.cycle_factor": factor})
    if factor < 1 and first <= 1 - factor:
        raise UserError(
            f"with schedule.first_cycle {first:g} and schedule.cycle_factor {factor:g} the cycles never reach the "
            f"end of the training; give a first_cycle above {1 - factor:g}, or a cycle_factor of 1 or more"
        )


def too_long_a_warmup(config: ScheduleConfig) -> str:
    """What to say of a warm-up that takes the whole training, as a config's may when only its steps are changed."""
    steps, warmup = config.steps or 0, config.warmup or 0
    if warmup < steps:
        return ""
    return (
        f"schedule.warmup is {warmup} steps of {steps} in all, so the learning rate never gets beyond "
        f"{100 * steps / (warmup + 1):.0f} % of its peak; give schedule.warmup=null for a twentieth"
    )


def learning_rate(step: int, base: float, config: ScheduleConfig) -> float:
    """The rate of step 0, 1, ... of a schedule whose `steps` and `warmup` are numbers; `base` is its peak."""
    assert config.steps is not None and config.warmup is not None
    if step < config.warmup:
        return base * (step + 1) / (config.warmup + 1)
    done = (step - config.warmup) / max(config.steps - config.warmup, 1)
    return config.min_lr + (base - config.min_lr) * _remaining(min(done, 1.0), config)


def _remaining(done: float, config: ScheduleConfig) -> float:
    """What is left of the rate, 1 to 0, after this share of the steps that follow the warm-up."""
    if config.decay == "constant":
        return 1.0
    if config.decay == "poly":
        return float((1.0 - done) ** config.power)
    if config.decay == "restarts":
        done = _cycle_position(done, config.first_cycle, config.cycle_factor)
    return 0.5 * (1.0 + math.cos(math.pi * done))


def _cycle_position(done: float, length: float, factor: float) -> float:
    """How far into its cycle, 0 to 1, a point is when cycles of growing length follow each other."""
    start = 0.0
    while done >= start + length and start + length < 1.0 - 1e-9:
        start += length
        length *= factor
    return min((done - start) / length, 1.0)
