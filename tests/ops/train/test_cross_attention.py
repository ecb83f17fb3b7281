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


def residual_formula(heads, eps=1e-5):
    """Of x (B, L, C), tokens' keys and values, and parameters as in `Layers`: LayerNorm(x + out(attention))."""

    def function(x, kv, q_weight, q_bias, out_weight, out_bias, norm_weight, norm_bias):
        read = head_by_head(heads)(x @ q_weight.t() + q_bias, *kv.chunk(2, -1))
        total = x + read @ out_weight.t() + out_bias
        centred = total - total.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
        return centred * scale * norm_weight + norm_bias

    return function


def make_residual(pixels, tokens, heads, width, channels, dtype=torch.float32, device="cpu", batch=2):
    """Inputs of `residual_formula`; pixels and tokens in this precision, parameters in float32."""
    inner = heads * width

    def draw(*shape):
        return torch.randn(shape, device=device)

    matrices = draw(inner, channels) / channels**0.5, draw(inner), draw(channels, inner) / inner**0.5, draw(channels)
    maps = draw(batch, pixels, channels).to(dtype), draw(batch, tokens, 2 * inner).to(dtype)
    return *maps, *matrices, 1 + draw(channels) / 4, draw(channels)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 5))
def test_attention(queries, keys, heads, width):
    q = torch.randn(2, queries, heads * width, dtype=torch.float64)
    k, v = torch.randn(2, 2, keys, heads * width, dtype=torch.float64)
    torch.testing.assert_close(attention(q, k, v, heads), head_by_head(heads)(q, k, v))
