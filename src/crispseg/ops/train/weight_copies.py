"""Parameters in half precision, as the products of a training step on CUDA take them: one launch for several.

Torch's own ways take a launch for each of them, or one launch of a few programs that work for long.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def copies(dtype: torch.dtype, *parameters: Tensor, spare: int = 0) -> list[Tensor]:
    """Contiguous copies of up to four parameters in this precision, without gradient; each with `spare` rows of zeros
    below its own."""
    with torch.no_grad():
        return _copies(parameters, dtype, spare)


# Registered as an operator so that torch.compile takes it as it is; its body imports Triton when first run.


@torch.library.custom_op(
    "crispseg::copies",
    mutates_args=(),
    schema="(Tensor[] parameters, ScalarType dtype, int spare) -> Tensor[]",
)
def _copies(parameters: Sequence[Tensor], dtype: torch.dtype, spare: int) -> list[Tensor]:
    from crispseg.ops.train import weight_copies_kernels as kernels

    with torch.cuda.device_of(parameters[0]):
        return kernels.copies(parameters, dtype, spare)


@_copies.register_fake
def _(parameters: Sequence[Tensor], dtype: torch.dtype, spare: int) -> list[Tensor]:
    return [x.new_empty((len(x) + spare, *x.shape[1:]), dtype=dtype) for x in parameters]
