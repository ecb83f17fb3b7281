"""UNetFormer's decoder parts against loops over windows and pixels."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from crispseg.peers.global_local import (
    AuxiliaryHead,
    GlobalLocalAttention,
    GlobalLocalBlock,
    RefinementHead,
    WeightedFusion,
    cross_mean,
)


def stir(module: torch.nn.Module) -> torch.nn.Module:
    """Evaluation mode with BatchNorm statistics and weights that are not their start."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if not tensor.is_floating_point():
            continue
        if name.endswith("running_var"):
            tensor.data.uniform_(0.5, 2)
        elif "norm" in name or "running_mean" in name or name.endswith((".1.weight", ".1.bias")):
            tensor.data.normal_()
    return module.double().eval()


def window_attention_by_loops(layer: GlobalLocalAttention, x: Tensor) -> Tensor:
    """(64, H, W), sides multiples of 8: each window, each head, each pair of pixels."""
    qkv = torch.einsum("oc,chw->ohw", layer.qkv.weight[..., 0, 0], x)
    out = torch.zeros_like(x)
    pixels = [(i, j) for i in range(8) for j in range(8)]
    table = layer.relative_position_bias_table
    for top in range(0, x.shape[1], 8):
        for left in range(0, x.shape[2], 8):
            window = qkv[:, top : top + 8, left : left + 8]
            for head in range(8):
                q, k, v = (window[64 * part + 8 * head : 64 * part + 8 * head + 8].flatten(1) for part in range(3))
                logits = torch.empty(64, 64, dtype=x.dtype)
                for a, (i, j) in enumerate(pixels):
                    for b, (m, n) in enumerate(pixels):
                        bias = table[(i - m + 7) * 15 + (j - n + 7), head]
                        logits[a, b] = q[:, a] @ k[:, b] / 8**0.5 + bias
                mixed = v @ logits.softmax(-1).T  # (8, 64)
                out[8 * head : 8 * head + 8, top : top + 8, left : left + 8] = mixed.view(8, 8, 8)
    return out


def test_window_attention() -> None:
    layer = GlobalLocalAttention().double()
    torch.nn.init.normal_(layer.relative_position_bias_table)
    x = torch.randn(1, 64, 8, 16, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(layer.window_attention(x)[0], window_attention_by_loops(layer, x[0]))


@pytest.mark.parametrize("size", [(8, 8), (9, 13), (2, 3), (2, 9)])
def test_cross_mean(size: tuple[int, int]) -> None:
    x = torch.randn(1, 1, *size)
    height, width = size
    rows = torch.cat([x, x[:, :, -2:-1]], 2)
    columns = torch.cat([x, x[..., -2:-1]], 3)
    truth = torch.zeros_like(x)
    for i in range(height):
        for j in range(width):
            vertical = sum(rows[0, 0, m, j] for m in range(max(i - 3, 0), min(i + 5, height + 1)))
            horizontal = sum(columns[0, 0, i, m] for m in range(max(j - 3, 0), min(j + 5, width + 1)))
            truth[0, 0, i, j] = (vertical + horizontal) / 8
    torch.testing.assert_close(cross_mean(x), truth)


@pytest.mark.parametrize("size", [(8, 8), (10, 16), (12, 13)])
def test_attention_at_sizes_torch_can_reflect(size: tuple[int, int]) -> None:
    """Pad by reflection, attend, crop, pool, add the local branch, reflect once more, project."""
    layer = stir(GlobalLocalAttention())
    x = torch.randn(2, 64, *size, dtype=torch.float64)
    height, width = size
    padded = F.pad(x, (0, -width % 8, 0, -height % 8), mode="reflect")
    attended = layer.window_attention(padded)[..., :height, :width]
    total = cross_mean(attended) + layer.local1(x) + layer.local2(x)
    total = F.pad(F.pad(total, (0, 1, 0, 0), mode="reflect"), (0, 0, 0, 1), mode="reflect")
    torch.testing.assert_close(layer(x), layer.proj(total))


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (3, 2)])
def test_block_takes_maps_smaller_than_its_padding(size: tuple[int, int]) -> None:
    block = GlobalLocalBlock()
    x = torch.randn(1, 64, *size)
    out = block(x)
    assert out.shape == x.shape and out.isfinite().all()


def test_block_is_two_residual_steps() -> None:
    block = stir(GlobalLocalBlock())
    x = torch.randn(1, 64, 8, 8, dtype=torch.float64)
    middle = x + block.attn(block.norm1(x))
    hidden = block.mlp.fc1(block.norm2(middle)).clamp(0, 6)
    torch.testing.assert_close(block(x), middle + block.mlp.fc2(hidden))


@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 1.0), (-2.0, 0.5), (-1.0, -1.0)])
def test_weighted_fusion(weights: tuple[float, float]) -> None:
    fusion = stir(WeightedFusion(5))
    fusion.weights.data = torch.tensor(weights, dtype=torch.float64)
    x, skip = torch.randn(1, 64, 3, 4, dtype=torch.float64), torch.randn(1, 5, 6, 8, dtype=torch.float64)
    a, b = (max(w, 0) for w in weights)
    doubled = F.interpolate(x, size=(6, 8), mode="bilinear", align_corners=False)
    mixed = a / (a + b + 1e-8) * fusion.pre_conv(skip) + b / (a + b + 1e-8) * doubled
    torch.testing.assert_close(fusion(x, skip), fusion.post_conv(mixed))


def test_refinement_head() -> None:
    head = stir(RefinementHead(5))
    x, skip = torch.randn(2, 64, 3, 4, dtype=torch.float64), torch.randn(2, 5, 5, 8, dtype=torch.float64)
    fused = WeightedFusion.forward(head, x, skip)
    pixel = torch.sigmoid(F.conv2d(fused, head.pa[0].weight, head.pa[0].bias, padding=1, groups=64))
    mean = fused.mean(dim=(2, 3))
    hidden = (mean @ head.ca[1].weight[..., 0, 0].T).clamp(0, 6)
    channel = torch.sigmoid(hidden @ head.ca[3].weight[..., 0, 0].T)[:, :, None, None]
    truth = head.proj(pixel * fused + channel * fused) + head.shortcut(fused)
    torch.testing.assert_close(head(x, skip), truth.clamp(0, 6))


def test_auxiliary_head_aligns_corners() -> None:
    head = stir(AuxiliaryHead(3, dropout=0.1))
    coarse, middle, fine = (torch.randn(1, 64, n, n, dtype=torch.float64) for n in (2, 4, 8))
    total = fine + F.interpolate(middle, (8, 8), mode="bilinear", align_corners=True)
    total = total + F.interpolate(coarse, (8, 8), mode="bilinear", align_corners=True)
    torch.testing.assert_close(head(coarse, middle, fine), head.conv_out(head.conv(total)))
