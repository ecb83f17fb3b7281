"""AdamW with the exclusions from weight decay, a rate of its own for the backbone, and Lookahead."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from crispseg.config import check_between, check_positive
from crispseg.errors import UserError


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    lr: float | None = None  # none: 6e-4; 6e-5 from a public checkpoint
    backbone_lr: float | None = None  # of the parameters under `backbone.`; none: lr
    gate_factor: float = 1.0  # learning rate of DCO's gates and of selective fusion's temperatures, over the others'
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float = 1.0  # largest norm of the gradient; 0 is off
    lookahead: int = 0  # steps between Lookahead's averagings; 0 is off, some rivals' recipes say 5
    lookahead_alpha: float = 0.5


def check_optimizer(config: OptimizerConfig) -> None:
    """Refuse values that no training can use, each with its key."""
    check_positive({"optimizer.lr": config.lr})
    amounts = {"gate_factor": config.gate_factor, "weight_decay": config.weight_decay, "clip": config.clip}
    amounts |= {"backbone_lr": config.backbone_lr or 0.0, "lookahead": config.lookahead}
    check_between({f"optimizer.{key}": value for key, value in amounts.items()}, 0, math.inf)
    check_between({"optimizer.lookahead_alpha": config.lookahead_alpha}, 0, 1)
    for number, beta in enumerate(config.betas):
        if not 0 <= beta < 1:
            raise UserError(f"optimizer.betas[{number}] must be at least 0 and below 1, not {beta}")


# Vectors, biases and gains are left out by shape; these are the ones with more axes, by the last part of their name.
_UNDECAYED = ("A_log", "D", "dt_bias", "log_scale", "embedding", "basic_queries", "pos_embed")


def decays(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies: to matrices and kernels, never to biases, norms, gates, scales, embeddings."""
    if parameter.ndim <= 1:
        return False
    parts = name.split(".")
    return "bias" not in parts[-1] and "biases" not in parts and parts[-1] not in _UNDECAYED


def is_gate(name: str) -> bool:
    """Whether a parameter is one of the few numbers that steer a mixer, by its name."""
    return ".dco." in name or ".selection." in name


def without_effect(model: nn.Module, config: OptimizerConfig) -> str:
    """What to say of settings that are for parameters which the model has not; recipes of families set them for all."""
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    idle = []
    if config.backbone_lr not in (None, config.lr) and not any(name.startswith("backbone.") for name in names):
        idle.append("optimizer.backbone_lr (no parameters under `backbone.`)")
    if config.gate_factor != 1.0 and not any(is_gate(name) for name in names):
        idle.append("optimizer.gate_factor (no gates)")
    return f"without effect on this network: {' and '.join(idle)}" if idle else ""


def parameter_groups(model: nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    """Up to five groups (backbone or not, decayed or not; gates); `peak` is the rate that the schedule scales."""
    assert config.lr is not None
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    groups: dict[tuple[bool, bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decayed = decays(name, parameter) and id(parameter) not in embeddings
            gate = config.gate_factor != 1.0 and is_gate(name)
            groups.setdefault((name.startswith("backbone."), decayed, gate), []).append(parameter)
    made = []
    for (in_backbone, decayed, gate), parameters in sorted(groups.items(), key=lambda item: item[0]):
        peak = config.backbone_lr if in_backbone and config.backbone_lr is not None else config.lr
        peak = peak * config.gate_factor if gate else peak
        weight_decay = config.weight_decay if decayed else 0.0
        made.append({"params": parameters, "lr": peak, "peak": peak, "weight_decay": weight_decay})
    return made


def build_optimizer(model: nn.Module, config: OptimizerConfig, device: torch.device) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameter_groups(model, config), betas=config.betas, fused=device.type == "cuda" or None)


def load_optimizer(optimizer: torch.optim.AdamW, state: dict[str, Any]) -> None:
    """Take over the moments of a checkpoint. The settings of the groups are the config's, whatever the file says."""
    settings = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)
    for parameter, moments in optimizer.state.items():
        shapes = {name: tuple(value.shape) for name, value in moments.items() if isinstance(value, Tensor)}
        if shapes != {"step": (), "exp_avg": parameter.shape, "exp_avg_sq": parameter.shape}:
            raise ValueError(f"the moments of a parameter {tuple(parameter.shape)} are {shapes}")


class Lookahead:
    """Every k steps the weights go back to a slow copy, which has moved a part alpha of the way to them."""

    def __init__(self, parameters: Iterable[Tensor], every: int, alpha: float) -> None:
        self.fast = list(parameters)
        self.slow = [parameter.detach().clone() for parameter in self.fast]
        self.every, self.alpha = every, alpha

    @torch.no_grad()
    def step(self, steps_done: int) -> None:
        if steps_done % self.every == 0:
            torch._foreach_lerp_(self.slow, self.fast, self.alpha)
            torch._foreach_copy_(self.fast, self.slow)

    def state_dict(self) -> dict[str, list[Tensor]]:
        return {"slow": self.slow}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, list[Tensor]]) -> None:
        for own, saved in zip(self.slow, state["slow"], strict=True):
            own.copy_(saved)
