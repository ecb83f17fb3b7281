"""The networks CRISP is compared with, one file each. Importing this registers their names and builds nothing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from crispseg.models.base import SegmentationModel
from crispseg.models.registry import Builder, register

if TYPE_CHECKING:
    from crispseg.peers.authors import load_authors_checkpoint

__all__ = ["load_authors_checkpoint"]


def _lazy(module: str, **fixed: Any) -> Builder:
    """A builder that imports the network's file, and with it timm, when it is first called."""

    def build(num_classes: int, in_channels: int, **options: Any) -> SegmentationModel:
        network = importlib.import_module(f"crispseg.peers.{module}")
        model: SegmentationModel = network.build(num_classes, in_channels, options, **fixed)
        return model

    return build


def _with_timm(name: str, build: Builder, summary: str) -> None:
    register(name, build, summary, requires="timm", extra="peers")


_with_timm("unetformer_r18", _lazy("unetformer"), "UNetFormer, ResNet-18")
_with_timm("abcnet_r18", _lazy("abcnet"), "ABCNet, ResNet-18")
register("banet_restlite", _lazy("banet"), "BANet, ResT-Lite")
for _size in ("tiny", "small", "base"):
    _with_timm(f"dcswin_{_size}", _lazy("dcswin", variant=_size), f"DC-Swin, Swin-{_size}")
_with_timm("pyramidmamba_swinb", _lazy("pyramidmamba"), "PyramidMamba, Swin-base")
_with_timm("sfanet_effb3", _lazy("sfanet"), "SFA-Net, EfficientNet-B3")
for _size in ("tiny", "small", "base"):
    _with_timm(f"aerialformer_{_size}", _lazy("aerialformer", variant=_size), f"AerialFormer, Swin-{_size}")
_with_timm("d2ls_convnextb", _lazy("d2ls"), "D2LS, ConvNeXt-base")


def __getattr__(name: str) -> Any:
    if name == "load_authors_checkpoint":
        from crispseg.peers.authors import load_authors_checkpoint

        return load_authors_checkpoint
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
