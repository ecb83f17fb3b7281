"""Small blocks against numpy and against their formulas."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from crispseg.peers.blocks import (
    ConvBN,
    FeatureAggregation,
    PixelShuffleHead,
    TexturePath,
    double_bilinear,
    double_nearest,
    kaiming_conv_bn,
    reflect_pad,
    same_padding,
    separable_bn_after,
    separable_bn_inside,
    small_normal,
)

sizes = st.integers(1, 9)


@given(sizes, sizes, st.integers(0, 12), st.integers(0, 12))
def test_reflect_pad_is_numpys_for_any_size(height: int, width: int, right: int, bottom: int) -> None:
    x = torch.randn(1, 2, height, width)
    truth = np.pad(x.numpy(), ((0, 0), (0, 0), (0, bottom), (0, right)), mode="reflect")
    assert np.array_equal(reflect_pad(x, right, bottom).numpy(), truth)


@given(sizes, sizes)
def test_doubling_fits_the_finer_map(height: int, width: int) -> None:
    """Pixel (i, j) of the doubled map is pixel (i // 2, j // 2); odd sizes lose the last row or column."""
    fine = torch.empty(1, 1, height, width)
    coarse = torch.randn(1, 2, (height + 1) // 2, (width + 1) // 2)
    truth = torch.stack(
        [torch.stack([coarse[..., i // 2, j // 2] for j in range(width)], -1) for i in range(height)], -2
    )
    assert torch.equal(double_nearest(coarse, like=fine), truth)
    assert double_bilinear(coarse, like=fine).shape == (1, 2, height, width)


def test_doubling_is_plain_interpolation_at_even_sizes() -> None:
    coarse, fine = torch.randn(1, 2, 3, 4), torch.empty(1, 1, 6, 8)
    truth = F.interpolate(coarse, size=(6, 8), mode="bilinear", align_corners=False)
    torch.testing.assert_close(double_bilinear(coarse, like=fine), truth)


@given(st.sampled_from([1, 3, 5, 7]), st.integers(1, 2), st.integers(1, 3), st.integers(1, 20))
def test_same_padding_divides_rounding_up(kernel: int, stride: int, dilation: int, size: int) -> None:
    out = (size + 2 * same_padding(kernel, stride, dilation) - dilation * (kernel - 1) - 1) // stride + 1
    assert out == -(-size // stride)


def test_separable_convolutions_place_their_norm() -> None:
    inside, after = separable_bn_inside(4, 3, padding=1).eval(), separable_bn_after(4, 2, dilation=2).eval()
    for layer in (inside[1], after[2]):
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)

    x = torch.randn(1, 4, 6, 5)
    depthwise = F.conv2d(x, inside[0].weight, padding=1, groups=4)
    normed = (depthwise - inside[1].running_mean.view(-1, 1, 1)) / (inside[1].running_var.view(-1, 1, 1) + 1e-5).sqrt()
    torch.testing.assert_close(inside(x), torch.einsum("oc,bchw->bohw", inside[2].weight[..., 0, 0], normed))

    depthwise = F.conv2d(x, after[0].weight, padding=2, dilation=2, groups=4)
    mixed = torch.einsum("oc,bchw->bohw", after[1].weight[..., 0, 0], depthwise)
    normed = (mixed - after[2].running_mean.view(-1, 1, 1)) / (after[2].running_var.view(-1, 1, 1) + 1e-5).sqrt()
    torch.testing.assert_close(after(x), normed.relu())


def test_pixel_shuffle_head_spreads_channels_over_pixels() -> None:
    head = PixelShuffleHead(3, 4, num_classes=2, factor=3).eval()
    x = torch.randn(1, 3, 2, 2)
    flat = head.conv_out(head.conv(x))  # (1, 2 * 9, 2, 2)
    out = head(x)
    for k in range(2):
        for i in range(6):
            for j in range(6):
                assert out[0, k, i, j] == flat[0, 9 * k + 3 * (i % 3) + j % 3, i // 3, j // 3]


def test_feature_aggregation_gates_itself() -> None:
    for residual in (False, True):
        fusion = FeatureAggregation(16, residual).eval()
        torch.nn.init.constant_(fusion.conv_atten.gamma, 0.5)
        texture, context = torch.randn(2, 1, 8, 3, 4)
        joined = fusion.convblk(torch.cat([texture, context], 1))
        assert torch.equal(fusion(texture, context), joined * fusion.conv_atten(joined) + joined)


def test_texture_path_size() -> None:
    path = TexturePath(5)
    assert path(torch.randn(2, 5, 33, 47)).shape == (2, 128, 5, 6)


def test_starts() -> None:
    layer = ConvBN(64, 64, 3, act=torch.nn.ReLU())
    layer.apply(kaiming_conv_bn)
    assert abs(layer[0].weight.std().item() * (64 * 9) ** 0.5 - 1) < 0.05  # gain 1 for a = 1
    linear = torch.nn.Linear(200, 200)
    linear.apply(small_normal)
    assert abs(linear.weight.std().item() - 0.02) < 1e-3 and (linear.bias == 0).all()
