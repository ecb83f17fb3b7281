"""What the operator is asked to do: its fixed choices (`Rule`) and its learned gates (`Gates`)."""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Fusion = Literal["raw", "normalized"]
Readout = Literal["row", "unnormalized", "elu"]
Skip = Literal["after", "before"]


@dataclasses.dataclass(frozen=True)
class Rule:
    """The operator's fixed choices.

    fusion: "raw" is public VSSD (K = B, Q = C); "normalized" is the paper's eq. 2 (K, Q = elu + 1, row normaliser).
    residual_readout: "row" divides the residual read-out by the same row normaliser; "unnormalized" does not.
        In `raw` fusion nothing is normalised and the two are the same. "elu" reads the residual by elu + 1 of keys and
        queries, un-normalised, whatever the fusion: in `raw` fusion that is another read-out than the output's own.
    skip: whether D * V is added after the calibration or before it.
    """

    fusion: Fusion = "normalized"
    residual_readout: Readout = "row"
    skip: Skip = "after"

    @classmethod
    def of_flags(cls, normalized: bool, skip_before: bool) -> Rule:
        return cls("normalized" if normalized else "raw", "row", "before" if skip_before else "after")

    @property
    def flags(self) -> tuple[bool, bool]:
        """As custom operators take it, whose kernels fold the residual: normalized, skip_before."""
        return self.fusion == "normalized", self.skip == "before"

    @property
    def residual_folds(self) -> bool:
        """Whether step 2 of DCO can be folded into the value gain, at no cost."""
        return self.residual_readout == "row" or (self.fusion == "raw" and self.residual_readout == "unnormalized")


class Gates(NamedTuple):
    """DCO's gates as they act (floored and bounded already). None switches that step off."""

    residual: Tensor | None = None  # (H,) 1e-4 + lambda: residual injection
    omega: Tensor | None = None  # (H,) high-pass
    s: Tensor | None = None  # (P,) rebalancing of the mean
    t: Tensor | None = None  # (P,) rebalancing of what varies

    @property
    def use_mean(self) -> bool:
        """Whether any step needs the mean over tokens."""
        return self.omega is not None or self.s is not None or self.t is not None


def normaliser_floor(dtype: torch.dtype) -> float:
    """The eps of the row normaliser, by the precision of the tokens."""
    return 1e-4 if dtype in (torch.float16, torch.bfloat16) else 1e-6


def positive_feature(x: Tensor) -> Tensor:
    """elu(x) + 1, written so that small values keep their digits: exp(x) below zero, x + 1 above."""
    return x.clamp(max=0).exp() + x.relu()
