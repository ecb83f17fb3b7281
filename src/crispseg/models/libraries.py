"""timm and torchvision, imported so that they load wherever they are installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from typing import Any

import torch


@cache
def import_timm() -> Any:
    """timm, also where torchvision's compiled part cannot load (a CUDA build of it beside a CPU build of torch)."""
    mend_torchvision()
    return importlib.import_module("timm")


@cache
def mend_torchvision() -> None:
    """Let torchvision be imported, where it is installed.

    Beside another build of torch it stops at two operators nobody here calls; declaring them lets it go on.
    """
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        _forget("torchvision")
        signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define("torchvision::nms", signature)
        torch.library.define("torchvision::qnms", signature)


def _forget(package: str) -> None:
    """Drop a half-imported package, so that the next import starts from its beginning."""
    for name in [n for n in sys.modules if n == package or n.startswith(f"{package}.")]:
        del sys.modules[name]
