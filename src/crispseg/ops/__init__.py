"""The hot operators. First of all non-causal state space duality (NC-SSD) with the Duality Calibration Operator (DCO);
beside it, each in its module of a lane: `nc_ssd`, `train`, `infer`, `maps`, `cpu`.

`ncssd` runs it. The parts are exposed for images that come in pieces: `accumulate` each piece into a State, add
the states, sum the queries, then `read_out` each piece; the result is the whole image's, wherever it was cut.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from torch import Tensor

from crispseg.errors import unknown
from crispseg.ops.dispatch import ENVIRONMENT_VARIABLE, HAS_TRITON, load_kernels, off, only
from crispseg.ops.nc_ssd import formula as _torch
from crispseg.ops.nc_ssd import reference as _reference
from crispseg.ops.nc_ssd.formula import QuerySums, State, accumulate, add_query_sums, add_states, query_sums, read_out
from crispseg.ops.nc_ssd.spec import Fusion, Gates, Readout, Rule, Skip

__all__ = [
    "BACKENDS",
    "Fusion",
    "Gates",
    "QuerySums",
    "Readout",
    "Rule",
    "Skip",
    "State",
    "accumulate",
    "add_query_sums",
    "add_states",
    "ncssd",
    "off",
    "only",
    "query_sums",
    "read_out",
]

Backend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Gates, Rule], Tensor]

# Those that are installed, best first.
BACKENDS: dict[str, Backend] = {"torch": _torch.ncssd, "reference": _reference.ncssd}

if HAS_TRITON:
    from crispseg.ops.nc_ssd import operator as _triton

    BACKENDS = {"triton": _triton.ncssd, **BACKENDS}


def ncssd(
    v: Tensor,
    b: Tensor,
    c: Tensor,
    rho: Tensor,
    d: Tensor,
    gates: Gates = Gates(),  # noqa: B008 - an immutable tuple
    rule: Rule = Rule(),  # noqa: B008 - frozen
    backend: str | None = None,
) -> Tensor:
    """Fuse all tokens of an image and calibrate: returns y (B, L, H, P), in float32 at least.

    v: values (B, L, H, P). b, c: keys and queries before their feature map (B, L, N). rho: positive gain per token
    and head (B, L, H). d: skip per head (H,). gates: DCO's, each step off where None. `backend` (or the environment
    variable CRISPSEG_OPS_BACKEND) forces one of BACKENDS; otherwise the best that takes these tensors is taken.

    The result is float32 for half-precision tokens because in raw fusion it grows with the number of tokens; a
    LayerNorm follows it in the network.
    """
    name = forced_backend(backend)
    return (_torch.dispatched if name is None else BACKENDS[name])(v, b, c, rho, d, gates, rule)


def forced_backend(name: str | None) -> str | None:
    """The backend asked for by argument or environment variable; an unknown one is the user's mistake."""
    name = name or os.environ.get(ENVIRONMENT_VARIABLE)
    if name and name not in BACKENDS:
        raise unknown("operator backend", name, BACKENDS)
    return name or None


# Here and not on first use, because a compiler that traces an operator must find its kernel.
if HAS_TRITON:
    load_kernels()
