"""crispseg: sharp semantic segmentation of remote sensing imagery with CRISP.

    import crispseg
    model = crispseg.create_model("crisp_tiny", num_classes=6)
    logits = model.eval()(images)          # (B, bands, H, W) -> (B, classes, H, W)

    run = crispseg.train("my_folder", model="crisp_nano")
    crispseg.evaluate(run.weights, "my_folder", out="report")
    crispseg.predict("city.tif", "map.tif", run.weights, polygons="map.gpkg")

What is listed in `__all__` is public and kept stable; everything else may change from one version to the next.
Nothing heavy is imported here: each name below is fetched from its room when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from crispseg.threads import choose_waiting

__version__ = "0.1.0"

choose_waiting()

_ROOMS = {
    "create_model": "crispseg.models.registry",
    "list_models": "crispseg.models.registry",
    "register_network": "crispseg.models.adapted",
    "register_head": "crispseg.models.own_head",
    "create_backbone": "crispseg.models.vssd",
    "list_backbones": "crispseg.models.vssd",
    "load_vssd_checkpoint": "crispseg.models.vssd_checkpoint",
    "load_authors_checkpoint": "crispseg.peers.authors",
    "load": "crispseg.models.folder",
    "segment": "crispseg.predict.segment",
    "UserError": "crispseg.errors",
}
_CALLABLE_ROOMS = ("train", "evaluate", "predict", "export")  # packages, and functions: see crispseg.rooms
__all__ = ["__version__", *_ROOMS, *_CALLABLE_ROOMS]

if TYPE_CHECKING:
    from crispseg.api import evaluate as evaluate
    from crispseg.api import predict as predict
    from crispseg.api import train as train
    from crispseg.errors import UserError as UserError
    from crispseg.export.run import export as export
    from crispseg.models.adapted import register_network as register_network
    from crispseg.models.folder import load as load
    from crispseg.models.own_head import register_head as register_head
    from crispseg.models.registry import create_model as create_model
    from crispseg.models.registry import list_models as list_models
    from crispseg.models.vssd import create_backbone as create_backbone
    from crispseg.models.vssd import list_backbones as list_backbones
    from crispseg.models.vssd_checkpoint import load_vssd_checkpoint as load_vssd_checkpoint
    from crispseg.peers.authors import load_authors_checkpoint as load_authors_checkpoint
    from crispseg.predict.segment import segment as segment


def __getattr__(name: str) -> Any:
    if name in _CALLABLE_ROOMS:
        return importlib.import_module(f"crispseg.{name}")
    if name not in _ROOMS:
        raise AttributeError(f"module 'crispseg' has no attribute {name!r}")
    return getattr(importlib.import_module(_ROOMS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
