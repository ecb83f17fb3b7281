"""Which backend is wanted: whether Triton's kernels can run here, and whether somebody forbade or forced them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator

from torch import version

ENVIRONMENT_VARIABLE = "CRISPSEG_OPS_BACKEND"

# Triton's kernels need torch built for CUDA, or its interpreter.
HAS_TRITON = importlib.util.find_spec("triton") is not None and (
    version.cuda is not None or os.environ.get("TRITON_INTERPRET") == "1"
)


def kernels_wanted() -> bool:
    """Whether operators with kernels of their own may use them."""
    return HAS_TRITON and os.environ.get(ENVIRONMENT_VARIABLE) in (None, "", "triton")


@contextlib.contextmanager
def only(name: str) -> Iterator[None]:
    """Within the block every operator of this room runs on that backend: "torch" is the plain formulas."""
    before = os.environ.get(ENVIRONMENT_VARIABLE)
    os.environ[ENVIRONMENT_VARIABLE] = name
    try:
        yield
    finally:
        os.environ.pop(ENVIRONMENT_VARIABLE)
        if before is not None:
            os.environ[ENVIRONMENT_VARIABLE] = before
