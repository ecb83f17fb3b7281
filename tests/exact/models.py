"""Small models whose every part matters to the result, one for each way the method can be set up."""

from __future__ import annotations

from typing import Any

import torch

from crispseg.models.base import SegmentationModel
from crispseg.models.registry import create_model

_BACKBONE: dict[str, Any] = {"width": 8, "depths": (1, 2, 1, 1), "heads": (1, 1, 2, 2), "state": 4}
_HEAD: dict[str, Any] = {"dim": 16, "attention_heads": 2, "mlp_dim": 24, "prototypes": 2}
_STEPS = {"residual": False, "highpass": False, "rebalance": False}

CASES: dict[str, dict[str, Any]] = {
    "topdown": {},
    "concat": {"neck": "concat"},
    "topdown, stride 2, shared": {"hyper": "shared", "descriptor_stride": 2, "descriptor_dim": 4},
    "concat, stride 4, per class": {
        "neck": "concat",
        "hyper": "per_class",
        "descriptor_stride": 4,
        "descriptor_dim": 16,
    },
    "raw": {"fusion": "raw"},
    "raw, skip before": {"fusion": "raw", "dco": {"skip": "before"}},
    "no calibration": {"dco": False},
    "raw, no calibration": {"fusion": "raw", "dco": False},
    "residual only": {"dco": _STEPS | {"residual": True}},
    "high-pass only": {"dco": _STEPS | {"highpass": True}},
    "rebalance only": {"dco": _STEPS | {"rebalance": True}},
    "unnormalized read-out": {"dco": {"residual_readout": "unnormalized"}},
    "skip before": {"dco": {"skip": "before"}},
    "unnormalized, skip before": {"dco": {"residual_readout": "unnormalized", "skip": "before"}},
    "residual read by elu + 1": {"fusion": "raw", "dco": {"residual_readout": "elu"}},
    "selective": {"fusion": "selective"},
    "centred": {"centred": True},
    "attention": {"last_stage": "attention"},
    "upernet": {},
    "upernet, attention": {"last_stage": "attention"},
}


def make(case: str, dtype: torch.dtype = torch.float32) -> SegmentationModel:
    """The case's model with random weights of a size at which no branch is negligible."""
    torch.manual_seed(0)
    if case.startswith("upernet"):
        model = create_model("vssd_nano_upernet", 3, 2, channels=6, **_BACKBONE, **CASES[case])
    else:
        model = create_model("crisp_nano", 3, 2, **_BACKBONE, **_HEAD, **CASES[case])
    for name, x in model.named_parameters():
        if "A_log" in name or "dt_bias" in name:
            continue
        spread = 1 / x[0].numel() ** 0.5 if x.dim() > 1 else 0.3
        x.data.add_(spread * torch.randn_like(x))
    for name, x in model.named_buffers():
        if name.endswith("running_var"):
            x.uniform_(0.5, 2.0)
        elif name.endswith("running_mean"):
            x.normal_()
    return model.to(dtype).eval()
