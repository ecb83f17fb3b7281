"""Linear attention against its formula, written out position by position in float64."""

import pytest
import torch
from torch import Tensor

from crispseg.peers.attention import ChannelLinearAttention, LinearAttention, attend_channels, attend_pixels


def attend_pixels_by_loops(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(c, N), (c, N), (C, N) -> (C, N)."""
    positions = query.shape[1]
    q = [query[:, i] / query[:, i].norm() for i in range(positions)]
    k = [key[:, j] / key[:, j].norm() for j in range(positions)]
    out = torch.zeros_like(value)
    for i in range(positions):
        weights = [1 + q[i] @ k[j] for j in range(positions)]
        numerator = sum(w * value[:, j] for j, w in enumerate(weights))
        out[:, i] = numerator / (sum(weights) + 1e-6 * q[i].sum())
    return out


def attend_channels_by_loops(x: Tensor) -> Tensor:
    """(C, N) -> (C, N)."""
    channels, positions = x.shape
    unit = x / x.norm(dim=0)
    out = torch.zeros_like(x)
    for c in range(channels):
        denominator = float(positions)
        for n in range(positions):
            denominator += float(unit[c, n] * (unit[:, n].sum() + 1e-6))
        for n in range(positions):
            mixed = sum(x[c] @ unit[m] * unit[m, n] for m in range(channels))
            out[c, n] = (x[:, n].sum() + mixed) / denominator
    return out


def test_pixels() -> None:
    query, key, value = (torch.randn(2, c, 3, 4, dtype=torch.float64) for c in (2, 2, 5))
    truth = torch.stack(
        [attend_pixels_by_loops(query[b].flatten(1), key[b].flatten(1), value[b].flatten(1)) for b in range(2)]
    )
    torch.testing.assert_close(attend_pixels(query, key, value), truth.view_as(value))


def test_channels() -> None:
    x = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    truth = torch.stack([attend_channels_by_loops(x[b].flatten(1)) for b in range(2)])
    torch.testing.assert_close(attend_channels(x), truth.view_as(x))


@pytest.mark.parametrize("residual", [False, True])
def test_module_scales_by_gamma_and_keeps_x_only_if_asked(residual: bool) -> None:
    layer = LinearAttention(16, residual).double()
    torch.nn.init.constant_(layer.gamma, 0.3)
    x = torch.randn(1, 16, 2, 3, dtype=torch.float64)
    w = attend_pixels_by_loops(*(f(x)[0].flatten(1) for f in (layer.query_conv, layer.key_conv, layer.value_conv)))
    torch.testing.assert_close(layer(x), 0.3 * w.view_as(x) + (x if residual else 0))


def test_start_is_identity_or_zero() -> None:
    x = torch.randn(2, 16, 3, 3)
    assert torch.equal(LinearAttention(16, residual=True)(x), x)
    assert torch.equal(ChannelLinearAttention()(x), x)
    assert LinearAttention(16, residual=False)(x).abs().max() == 0


def test_a_pixel_of_zeros_gives_neither_nan_nor_a_wild_gradient() -> None:
    x = torch.randn(1, 8, 2, 2)
    x[..., 0, 0] = 0
    x.requires_grad_()
    layer = ChannelLinearAttention()
    torch.nn.init.ones_(layer.gamma)
    layer(x.relu()).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all() and x.grad.abs().max() < 1e3


def test_half_precision_sums_in_float32() -> None:
    """65,536 positions of value 8 overflow float16 when summed there."""
    x = torch.full((1, 8, 256, 256), 8.0)
    layer = LinearAttention(8, residual=True)
    torch.nn.init.ones_(layer.gamma)
    truth = layer(x)
    out = layer.to(torch.float16)(x.to(torch.float16))
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), truth, rtol=1e-2, atol=1e-2)
