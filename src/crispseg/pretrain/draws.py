"""Random numbers as a pure function of (seed, epoch, index), for whole batches at once.

A counter goes through a mixing function of 64-bit numbers (splitmix64's), so a number depends on its key alone:
not on the batch it is drawn in, the process, or what was drawn before.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
_STRIDE = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seed: int, epochs: Whole, indices: Whole, count: int, purpose: str = "") -> NDArray[np.float64]:
    """(len(indices), count) numbers in [0, 1); another `purpose` has numbers of its own."""
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    start = np.uint64(int.from_bytes(digest, "big"))
    with np.errstate(over="ignore"):
        keys = _mixed(_mixed(start + epochs.astype(np.uint64) * _STRIDE) + indices.astype(np.uint64) * _STRIDE)
        columns = np.arange(1, count + 1, dtype=np.uint64) * _STRIDE
        numbers = _mixed(keys[:, None] + columns)
    return (numbers >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
