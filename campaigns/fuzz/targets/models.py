"""Models and checkpoints."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from tests.train import tiny

from campaigns.fuzz.targets.base import Target


@functools.cache
def small_model() -> Any:
    import crispseg
    from crispseg.models.base import ModelInfo

    model = crispseg.create_model("crisp_nano", num_classes=3, **tiny.OPTIONS)
    model.info = ModelInfo(
        ("a", "b", "c"), ((0, 0, 0), (9, 9, 9), (8, 8, 8)), ("red", "green", "blue"), (1.0,) * 3, (2.0,) * 3
    )
    return model


_MODEL = ("model/config.json", "model/config.json", "model/model.safetensors")
_BACKBONE = {name: value for name, value in tiny.OPTIONS.items() if name in ("width", "depths", "heads", "state")}


def _save_backbone(folder: Path) -> None:
    from crispseg.models.backbone_folder import BackboneInfo, save_backbone
    from crispseg.models.vssd import create_backbone

    info = BackboneInfo((1.0, 2.0, 3.0), (1.0, 1.0, 1.0), "photos", scores={"a": 0.5})
    save_backbone(create_backbone("vssd_nano", **_BACKBONE), folder / "model", "vssd_nano", info)


def targets() -> list[Target]:
    import torch

    from crispseg.models.backbone_folder import load_backbone
    from crispseg.models.folder import load
    from crispseg.models.vssd import create_backbone
    from crispseg.models.vssd_checkpoint import load_vssd_checkpoint

    backbone = create_backbone("vssd_nano", **_BACKBONE)

    def public(folder: Path) -> None:
        torch.save({"model": {**backbone.state_dict(), "head.weight": torch.zeros(2, 3)}, "epoch": 3}, folder / "v.pth")

    return [
        Target(
            "model folder",
            lambda folder: small_model().save(folder / "model"),
            _MODEL,
            lambda folder: load(folder / "model"),
            share=10,
        ),
        Target("backbone folder", _save_backbone, _MODEL, lambda folder: load_backbone(folder / "model")),
        Target(
            "public checkpoint", public, ("v.pth",), lambda folder: load_vssd_checkpoint(backbone, folder / "v.pth")
        ),
    ]
