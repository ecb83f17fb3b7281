"""ResT's attention against its formula, with torch's own InstanceNorm as the oracle for standardising."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from crispseg.peers.rest import EfficientAttention, ResTLite


def attention_by_formula(layer: EfficientAttention, x: Tensor, size: tuple[int, int]) -> Tensor:
    batch, _, channels = x.shape
    heads, reduction = layer.heads, layer.reduction
    keys = x
    if reduction > 1:
        grid = x.permute(0, 2, 1).reshape(batch, channels, *size)
        reduced = F.conv2d(
            grid, layer.sr.weight, layer.sr.bias, stride=reduction, padding=reduction // 2, groups=channels
        )
        keys = layer.sr_norm(reduced.flatten(2).permute(0, 2, 1))
    query, both = layer.q(x), layer.kv(keys)
    key, value = both[..., :channels], both[..., channels:]
    width = channels // heads
    maps = []
    for h in range(heads):
        part = slice(h * width, (h + 1) * width)
        maps.append(query[..., part] @ key[..., part].transpose(1, 2) / width**0.5)
    logits = torch.stack(maps, 1)
    if heads > 1:
        mixed = torch.einsum("gh,bhij->bgij", layer.transform_conv.weight[..., 0, 0], logits)
        logits = mixed + layer.transform_conv.bias.view(1, -1, 1, 1)
    attention = logits.softmax(-1)
    if heads > 1:
        attention = F.instance_norm(attention)
    out = [attention[:, h] @ value[..., h * width : (h + 1) * width] for h in range(heads)]
    return layer.proj(torch.cat(out, -1))


@pytest.mark.parametrize(("heads", "reduction"), [(1, 8), (2, 4), (4, 2), (8, 1)])
def test_attention(heads: int, reduction: int) -> None:
    layer = EfficientAttention(64, heads, reduction).double()
    x = 10 * torch.randn(2, 9 * 5, 64, dtype=torch.float64)
    torch.testing.assert_close(layer(x, (9, 5)), attention_by_formula(layer, x, (9, 5)))


def test_one_pixel_has_nothing_to_standardise() -> None:
    layer = EfficientAttention(16, 2, 1)
    torch.testing.assert_close(layer(torch.randn(1, 1, 16), (1, 1))[0, 0], layer.proj.bias)


def test_strides_round_up() -> None:
    stride16, stride32 = ResTLite(2)(torch.randn(1, 2, 33, 50))
    assert stride16.shape == (1, 256, 3, 4) and stride32.shape == (1, 512, 2, 2)
