"""Models as files for other programs, each checked against its model before it is put in place.

    crispseg.export(model, "model.onnx")                      # for onnxruntime, OpenVINO, TensorRT, QGIS
    crispseg.export("crisp_nano_dubai", "model.pt2", size=(512, 512))

The room is called like its function, so it can be called itself; `crispseg.export.run.export` says what it takes.
"""

from __future__ import annotations

import sys
import types
from typing import Any


class _Callable(types.ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from crispseg.export.run import export

        return export(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
