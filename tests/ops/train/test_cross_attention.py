"""Attention against its definition, head by head, in float64. The kernels' tests are in `interpreted_head.py` and
`test_head_gpu.py`."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from crispseg.ops.train.cross_attention import attention


def head_by_head(heads):
    """The definition, a function of q, k and v."""

    def attend(q, k, v):
        parts = zip(*(x.chunk(heads, -1) for x in (q, k, v)), strict=True)
        return torch.cat(
            [torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, -1) @ v for q, k, v in parts], dim=-1
        )

    return attend


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 5))
def test_attention(queries, keys, heads, width):
    q = torch.randn(2, queries, heads * width, dtype=torch.float64)
    k, v = torch.randn(2, 2, keys, heads * width, dtype=torch.float64)
    torch.testing.assert_close(attention(q, k, v, heads), head_by_head(heads)(q, k, v))
