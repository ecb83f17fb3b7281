"""Speed and memory of registered models, side by side: every model treated alike, and no number without a check.

`models.py`, `scaling.py` and `ops.py` say what is measured and hand it, as Entries, to `contest.py`, which prepares
each in its mode (`modes.py`), checks its output (`check.py`) and takes times in turn. `result.py` is what is kept,
`tables.py` and `plot.py` show it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_FILES = {
    "Settings": "crispseg.bench.settings",
    "choose": "crispseg.bench.settings",
    "Result": "crispseg.bench.result",
    "read": "crispseg.bench.result",
    "bench_models": "crispseg.bench.models",
    "bench_scaling": "crispseg.bench.scaling",
    "bench_ops": "crispseg.bench.ops",
}
__all__ = list(_FILES)

if TYPE_CHECKING:
    from crispseg.bench.models import bench_models as bench_models
    from crispseg.bench.ops import bench_ops as bench_ops
    from crispseg.bench.result import Result as Result
    from crispseg.bench.result import read as read
    from crispseg.bench.scaling import bench_scaling as bench_scaling
    from crispseg.bench.settings import Settings as Settings
    from crispseg.bench.settings import choose as choose


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_FILES[name]), name)
