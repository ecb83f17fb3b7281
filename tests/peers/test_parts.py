"""What only one network has, against its formula: aggregation, dilated groups, pooling, dictionary, adjustment."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from crispseg.peers.aerialformer import GROUPS, Decoder, MultiDilatedConv, group_widths, quadrants_first
from crispseg.peers.d2ls import Attention, Dictionary, FourierPosition, Interactor, Modulator, pad_for_encoder
from crispseg.peers.dcswin import DenseAggregation, Down
from crispseg.peers.pyramidmamba import PyramidPoolMamba, pool_size
from crispseg.peers.sfanet import MapAdjustment, VectorAdjustment, shuffle_channels


def test_dcswin_down_connection() -> None:
    down = Down(3, 5).eval()
    x = torch.randn(1, 3, 7, 6)
    first = F.conv2d(x, down.convbn1[0].weight, padding=1) / math.sqrt(1 + 1e-5)
    second = F.conv2d(first.relu(), down.convbn2[0].weight, stride=2, padding=1) / math.sqrt(1 + 1e-5)
    shortcut = F.conv2d(x, down.downsample[0].weight, stride=2, padding=1) / math.sqrt(1 + 1e-5)
    torch.testing.assert_close(down(x), (second + shortcut).relu())


def test_dcswin_aggregation_shares_its_attentions() -> None:
    dense = DenseAggregation(16).eval()
    torch.nn.init.constant_(dense.ca.gamma, 0.4)
    torch.nn.init.constant_(dense.pa.gamma, 0.6)
    x1, x2, x3, x4 = (torch.randn(1, 16 * 2**i, 16 // 2**i, 24 // 2**i) for i in range(4))

    def up(x: Tensor, first: torch.nn.Module, second: torch.nn.Module) -> Tensor:
        return F.interpolate(second(F.interpolate(first(x), scale_factor=2)), scale_factor=2)

    out4 = dense.conv4(x4) + dense.down34(dense.pa(dense.down232(x2)))
    out3 = dense.pa(x3) + dense.down231(dense.ca(dense.down12(x1)))
    out2 = dense.ca(x2) + up(out4, dense.lf4.first, dense.lf4.second)
    out1 = up(out3, dense.lf3.first, dense.lf3.second) + dense.conv1(x1)
    torch.testing.assert_close(dense(x1, x2, x3, x4), (out1, out2))
    assert [dense.lf4.first[0].dilation, dense.lf4.second[0].dilation] == [(6, 6), (12, 12)]


@pytest.mark.parametrize("channels", [96, 1024, 100])
def test_group_widths_are_chunks(channels: int) -> None:
    size = math.ceil(channels / 3)
    assert group_widths(channels, 3) == [size, size, channels - 2 * size]


@pytest.mark.parametrize("level", range(5))
def test_multi_dilated_convolution(level: int) -> None:
    block = MultiDilatedConv(10, 6, GROUPS[level]).eval()
    kernels = (1, 3, 3) if level == 4 else (3, 3, 3)
    dilations = (1, 2, 3) if level < 3 else (1, 1, 1)
    x = torch.randn(1, 10, 7, 5)
    mixed = torch.einsum("oc,bchw->bohw", block.pre_conv_layer.weight[..., 0, 0], x)
    parts = [mixed[:, 0:4], mixed[:, 4:8], mixed[:, 8:10]]
    for i, (part, kernel, dilation) in enumerate(zip(parts, kernels, dilations, strict=True)):
        weight = block.layers[i].weight
        assert weight.shape[-1] == kernel
        parts[i] = F.conv2d(part, weight, padding=dilation * (kernel // 2), dilation=dilation)
    truth = torch.einsum("oc,bchw->bohw", block.fusion_layer.weight[..., 0, 0], torch.cat(parts, 1))
    torch.testing.assert_close(block(x), (truth / math.sqrt(1 + 1e-5)).relu(), rtol=1e-4, atol=1e-5)


def test_aerialformer_decoder_joins_the_upsampled_map_before_the_skip() -> None:
    decoder = Decoder(8, num_classes=2, dropout=0.1).eval()
    features = [torch.randn(1, c, s, s) for c, s in ((4, 16), (8, 8), (16, 4), (32, 2), (64, 1))]
    x = decoder.dilated_convs[0](features[4])
    for level, skip in ((1, features[3]), (2, features[2]), (3, features[1]), (4, features[0])):
        x = decoder.dilated_convs[level](torch.cat([decoder.up_convs[level](x), skip], 1))
    torch.testing.assert_close(decoder(features), decoder.conv_seg(x))


def test_merging_weights_from_unfolds_order() -> None:
    """The authors' merging (unfold, LayerNorm, linear) equals ours (quadrant by quadrant) with permuted weights."""
    x = torch.randn(1, 5, 4, 6)
    scale, shift, weight = torch.randn(20), torch.randn(20), torch.randn(10, 20)
    unfolded = F.unfold(x, 2, stride=2).transpose(1, 2)  # (1, 2 * 3, 20), channel * 4 + 2 * row + column
    theirs = F.linear(F.layer_norm(unfolded, (20,), scale, shift), weight)
    last = x.permute(0, 2, 3, 1)
    ours = torch.cat([last[:, i::2, j::2] for i, j in ((0, 0), (1, 0), (0, 1), (1, 1))], -1).flatten(1, 2)
    ours = F.layer_norm(ours, (20,), quadrants_first(scale), quadrants_first(shift))
    torch.testing.assert_close(F.linear(ours, quadrants_first(weight)), theirs)


@pytest.mark.parametrize(("size", "pools"), [(16, [1, 5, 9, 13]), (32, [1, 9, 17, 25]), (4, [1, 2, 3, 4])])
def test_pool_sizes(size: int, pools: list[int]) -> None:
    assert [pool_size(size, branch) for branch in range(4)] == pools


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_pool_sizes_never_exceed_the_map(size: int) -> None:
    assert all(1 <= pool_size(size, branch) <= size for branch in range(4))


def test_pyramid_joins_the_map_and_four_poolings() -> None:
    block = PyramidPoolMamba(8, 4).eval()
    x = torch.randn(1, 8, 16, 8)
    maps = [x, block.pool_layers[0](x).mean(dim=(2, 3), keepdim=True).expand(-1, -1, 16, 8)]
    for layer, rows, columns in zip(block.pool_layers[1:], (5, 9, 13), (3, 5, 7), strict=True):
        pooled = layer(F.adaptive_avg_pool2d(x, (rows, columns)))
        maps.append(F.interpolate(pooled, (16, 8), mode="bilinear", align_corners=False))
    tokens = torch.cat(maps, 1).permute(0, 2, 3, 1).reshape(1, 128, 24)  # row by row
    truth = block.mamba(tokens).reshape(1, 16, 8, 24).permute(0, 3, 1, 2)
    torch.testing.assert_close(block(x), truth)


def test_vector_adjustment_returns_one_pixel() -> None:
    layer, x = VectorAdjustment(48), torch.randn(2, 48, 3, 5)
    mean = x.mean(dim=(2, 3))
    first, second = layer.conv[0], layer.conv[2]
    hidden = F.linear(mean, first.weight[..., 0, 0], first.bias).relu()
    gate = F.linear(hidden, second.weight[..., 0, 0], second.bias).sigmoid()
    torch.testing.assert_close(layer(x), (gate * mean)[:, :, None, None])


def test_map_adjustment_gates_channels() -> None:
    layer, x = MapAdjustment(136), torch.randn(2, 136, 3, 5)
    mean = x.mean(dim=(2, 3))
    gate = ((mean @ layer.fc[0].weight.T).relu() @ layer.fc[2].weight.T).sigmoid()
    torch.testing.assert_close(layer(x), gate[:, :, None, None] * x)


def test_shuffle_deals_channels_out() -> None:
    x = torch.arange(8.0).view(1, 8, 1, 1)
    assert shuffle_channels(x, 4).flatten().tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


def test_dictionary_entries_are_weighted_means_of_four_candidates() -> None:
    dictionary = Dictionary(3)
    weights = torch.rand(2, 3, 4).softmax(-1)
    embeddings = dictionary.basic_queries.weight
    expanded = F.linear(embeddings, dictionary.token_mlp.weight, dictionary.token_mlp.bias)
    truth = torch.zeros(2, 3, 256)
    for b in range(2):
        for k in range(3):
            for j in range(4):
                truth[b, k] += weights[b, k, j] * expanded[k, 256 * j : 256 * j + 256]
    torch.testing.assert_close(dictionary.dynamic(weights), truth)
    assert torch.equal(dictionary.static(2), torch.stack([embeddings, embeddings]))


def test_modulator_pools_one_half_by_maximum_and_the_other_by_mean() -> None:
    modulator, x = Modulator(3), torch.randn(2, 1024, 2, 3)
    tokens = F.linear(x.permute(0, 2, 3, 1), modulator.mlp1.proj.weight, modulator.mlp1.proj.bias).flatten(1, 2)
    peak, mean = tokens[..., :128].amax(1), tokens[..., 128:].mean(1)
    peak = F.linear(peak, modulator.gmp_branch[1].weight[..., 0, 0], modulator.gmp_branch[1].bias)
    mean = F.linear(mean, modulator.gap_branch[1].weight[..., 0, 0], modulator.gap_branch[1].bias)
    truth = modulator.mlp2(torch.cat([peak, mean], 1)).view(2, 3, 4).softmax(-1)
    torch.testing.assert_close(modulator(x), truth)


def attention_by_loops(layer: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(n, 256), (m, 256), (m, 256); eight heads of inner / 8."""
    query, key, value = layer.q_proj(q), layer.k_proj(k), layer.v_proj(v)
    width = query.shape[1] // 8
    out = torch.zeros_like(query)
    for h in range(8):
        part = slice(h * width, (h + 1) * width)
        for i in range(len(q)):
            logits = torch.stack([query[i, part] @ key[j, part] for j in range(len(k))]) / width**0.5
            out[i, part] = logits.softmax(0) @ value[:, part]
    return layer.out_proj(out)


def test_interactor() -> None:
    interactor = Interactor(layers=2).double()
    tokens, pixels, code = (torch.randn(n, 256, dtype=torch.float64) for n in (3, 5, 5))
    q, image = tokens, pixels
    for layer in interactor.layers:
        seen = attention_by_loops(layer.cross_attn_token_to_image, q + tokens, image + code, image)
        q = layer.norm2(q + seen)
        seen = attention_by_loops(layer.cross_attn_image_to_token, image + code, q + tokens, q)
        image = layer.norm4(image + seen)
    seen = attention_by_loops(interactor.final_attn_token_to_image, q + tokens, image + code, image)
    q = interactor.norm_final_attn(q + seen)
    torch.testing.assert_close(interactor(tokens[None], pixels[None], code), (q[None], image[None]))


def test_position_code() -> None:
    position = FourierPosition()
    matrix = position.positional_encoding_gaussian_matrix
    code = position(3, 5)
    for i in range(3):
        for j in range(5):
            centre = torch.tensor([2 * (j + 0.5) / 5 - 1, 2 * (i + 0.5) / 3 - 1])
            angle = 2 * math.pi * (centre @ matrix)
            torch.testing.assert_close(code[5 * i + j], torch.cat([angle.sin(), angle.cos()]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("size", "padded"), [((1, 33), (32, 36)), ((36, 500), (36, 500)), ((31, 32), (32, 32))])
def test_d2ls_pads_no_more_than_it_must(size: tuple[int, int], padded: tuple[int, int]) -> None:
    x = torch.randn(1, 2, *size)
    out = pad_for_encoder(x)
    assert out.shape[-2:] == padded
    assert torch.equal(out[..., : size[0], : size[1]], x)
    assert torch.equal(out[..., size[0] - 1 :, : size[1]], x[..., -1:, :].expand_as(out[..., size[0] - 1 :, : size[1]]))
