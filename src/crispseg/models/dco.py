"""The Duality Calibration Operator's gates: four small vectors per block, read by `crispseg.ops`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from crispseg import config as configs
from crispseg.errors import UserError
from crispseg.ops.common.precision import widened
from crispseg.ops.nc_ssd.spec import Gates, Readout, Skip

RESIDUAL_FLOOR = 1e-4


@dataclasses.dataclass(frozen=True)
class DCOConfig:
    """Each of the three steps switches by itself; `residual_readout` and `skip` are explained in `ops.Rule`."""

    residual: bool = True  # step 2: inject the duality error
    highpass: bool = True  # step 3: amplify what differs from the mean over tokens
    rebalance: bool = True  # step 4: weigh the mean against what varies, per channel
    residual_readout: Readout = "row"
    skip: Skip = "after"
    init: float = 0.01

    def __post_init__(self) -> None:
        if not math.isfinite(self.init):
            raise UserError(f"dco.init must be a finite number, not {self.init}")

    @property
    def enabled(self) -> bool:
        return self.residual or self.highpass or self.rebalance


def dco_config(value: bool | Mapping[str, Any] | DCOConfig) -> DCOConfig:
    """True is all steps, False none; a mapping sets fields."""
    if isinstance(value, DCOConfig):
        return value
    if isinstance(value, bool):
        return DCOConfig(residual=value, highpass=value, rebalance=value)
    return configs.build(DCOConfig, value, "dco.")


class DCO(nn.Module):
    """Holds lambda, omega in R^H and s, t in R^P. omega, s and t act through tanh, which bounds them to (-1, 1):
    so (1 + omega), (1 + s) and (1 + t) stay positive and calibration can never turn a feature around."""

    def __init__(self, heads: int, head_width: int, config: DCOConfig) -> None:
        super().__init__()
        self.config = config

        def gate(size: int, used: bool) -> nn.Parameter | None:
            return nn.Parameter(torch.full((size,), config.init)) if used else None

        self.lambda_ = gate(heads, config.residual)
        self.omega = gate(heads, config.highpass)
        self.s = gate(head_width, config.rebalance)
        self.t = gate(head_width, config.rebalance)

    def gates(self) -> Gates:
        """lambda raised by a floor; omega, s and t through tanh."""
        lambda_, omega, s, t = (None if x is None else widened(x) for x in (self.lambda_, self.omega, self.s, self.t))
        return Gates(
            residual=None if lambda_ is None else RESIDUAL_FLOOR + lambda_,
            omega=None if omega is None else torch.tanh(omega),
            s=None if s is None else torch.tanh(s),
            t=None if t is None else torch.tanh(t),
        )
