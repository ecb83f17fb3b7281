"""The networks' wiring at sizes their authors accept, written out a second time with plain interpolation."""

import torch
from torch import Tensor
from torch.nn import functional as F

import crispseg.peers  # noqa: F401
from crispseg.models.base import SegmentationModel
from crispseg.models.registry import create_model
from crispseg.peers.attention import attend_pixels
from crispseg.peers.blocks import FeatureAggregation


def prepared(name: str) -> SegmentationModel:
    model = create_model(name, num_classes=3)
    for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if key.endswith("gamma"):
            tensor.data.fill_(0.7)
        elif key.endswith("running_mean"):
            tensor.data.normal_(std=0.1)
        elif key.endswith("running_var"):
            tensor.data.uniform_(0.5, 2)
    return model.eval()


def nearest(x: Tensor, factor: int) -> Tensor:
    return x.repeat_interleave(factor, 2).repeat_interleave(factor, 3)


def bilinear(x: Tensor, factor: int) -> Tensor:
    return F.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=False)


def attention(fusion: FeatureAggregation, x: Tensor) -> Tensor:
    """gamma * attention(x), without the residual that only BANet adds."""
    layer = fusion.conv_atten
    return layer.gamma * attend_pixels(layer.query_conv(x), layer.key_conv(x), layer.value_conv(x))


@torch.no_grad()
def test_abcnet() -> None:
    model, x = prepared("abcnet_r18"), torch.randn(1, 3, 64, 96)
    cp = model.cp
    _, _, e16, e32 = cp.resnet(x)
    c16 = cp.conv_head32(nearest(cp.arm32(e32) + cp.conv_avg(F.adaptive_avg_pool2d(e32, 1)), 2))
    c8 = cp.conv_head16(nearest(cp.arm16(e16) + c16, 2))
    joined = model.fam.convblk(torch.cat([model.sp(x), c8], 1))
    torch.testing.assert_close(model(x), model.conv_out(joined * attention(model.fam, joined) + joined))
    model.training = True  # the heads run, every layer stays in evaluation mode
    torch.testing.assert_close(model(x).aux, (model.conv_out16(c8), model.conv_out32(c16)))


@torch.no_grad()
def test_banet() -> None:
    model, x = prepared("banet_restlite"), torch.randn(1, 3, 64, 96)
    cp = model.cp
    low, high = cp.ResT(x)
    gate = F.pixel_shuffle(cp.AE.up.proj(cp.AE.conv_attn(cp.AE.attention(high))), 2)
    context = nearest(cp.conv_avg(low * gate + low), 2)
    joined = model.fam.convblk(torch.cat([model.sp(x), context], 1))
    gated = joined * (joined + attention(model.fam, joined)) + joined
    torch.testing.assert_close(model(x), model.conv_out(gated))


@torch.no_grad()
def test_unetformer() -> None:
    model, x = prepared("unetformer_r18"), torch.randn(1, 3, 64, 96)
    d = model.decoder
    e4, e8, e16, e32 = model.backbone(x)
    h4 = d.b4(d.pre_conv(e32))
    h3 = d.b3(d.p3(h4, e16))
    h2 = d.b2(d.p2(h3, e8))
    torch.testing.assert_close(model(x), bilinear(d.segmentation_head(d.p1(h2, e4)), 4))
    d.training = True
    total = h2 + F.interpolate(h3, scale_factor=2, mode="bilinear", align_corners=True)
    total = total + F.interpolate(h4, scale_factor=4, mode="bilinear", align_corners=True)
    aux = bilinear(d.aux_head.conv_out(d.aux_head.conv(total)), 8)
    torch.testing.assert_close(model(x).aux[0], aux)


@torch.no_grad()
def test_sfanet() -> None:
    model, x = prepared("sfanet_effb3"), torch.randn(1, 3, 64, 96)
    d = model.decoder
    e1, e2, e3, e4 = model.backbone(x)
    f1 = d.fam1(e2 + d.down12(e1))
    f2 = d.fam2(e3 + d.down231(e2))
    assert f1.shape == (1, 48, 1, 1)
    h4 = d.b4(d.pre_conv(e4 + d.down34(f2)))
    h3 = d.b3(d.p3(h4, d.down232(f1).expand_as(f2) + f2))
    h2 = d.b2(d.p2(h3, e2))
    torch.testing.assert_close(model(x), bilinear(d.segmentation_head(d.p1(h2, e1)), 4))


@torch.no_grad()
def test_dcswin() -> None:
    model, x = prepared("dcswin_tiny"), torch.randn(1, 3, 64, 64)
    d = model.decoder
    out1, out2 = d.dcfam(*model.backbone(x))
    logits = d.segmentation_head(out1 + nearest(d.up(out2), 2))
    torch.testing.assert_close(model(x), F.interpolate(logits, scale_factor=4, mode="bilinear", align_corners=True))


@torch.no_grad()
def test_pyramidmamba() -> None:
    model, x = prepared("pyramidmamba_swinb"), torch.randn(1, 3, 64, 96)
    d = model.decoder
    e4, _, _, e32 = model.backbone(x)
    ffn = d.b3.conv_ffn
    y = ffn.fc2(F.gelu(ffn.fc1(ffn.conv(d.b3.mamba(e32)))))
    for step in d.up_conv:
        y = nearest(step(y), 2)
    y = d.head[1](bilinear(d.head[0](y + d.pre_conv(e4)), 2))
    torch.testing.assert_close(model(x), d.head[2](bilinear(y, 2)))


@torch.no_grad()
def test_d2ls_on_a_size_that_halves_unevenly() -> None:
    """36 x 44 px: 9 x 11 at stride 4, then 4 x 5, 2 x 2, 1 x 1, rounded down as in the authors' encoder."""
    model, x = prepared("d2ls_convnextb"), torch.randn(2, 3, 36, 44)
    features = model.backbone(x)
    assert [tuple(f.shape[-2:]) for f in features] == [(9, 11), (4, 5), (2, 2), (1, 1)]
    maps = []
    for project, feature in zip(model.linear_c, features, strict=True):
        tokens = project.proj(feature.flatten(2).transpose(1, 2)).transpose(1, 2)
        resized = F.interpolate(
            tokens.reshape(2, 256, *feature.shape[-2:]), (9, 11), mode="bilinear", align_corners=False
        )
        maps.append(resized)
    pixels = model.aggregator(torch.cat([maps[3], maps[2], maps[1], maps[0]], 1))
    d = model.decoder

    def decode(tokens: Tensor) -> Tensor:
        tokens, image = d.interactor(tokens, pixels.flatten(2).transpose(1, 2), model.pe_layer(9, 11))
        fine = F.pixel_shuffle(image.transpose(1, 2).reshape(2, 256, 9, 11), 2)
        fine = F.layer_norm(fine.permute(0, 2, 3, 1), (64,), d.upsampler[1].weight, d.upsampler[1].bias, 1e-6)
        fine = F.gelu(F.pixel_shuffle(F.gelu(fine.permute(0, 3, 1, 2)), 2))
        return (d.output_hypernetwork_mlps(tokens) @ fine.flatten(2)).view(2, 3, 36, 44)

    dynamic, static = d.token.dynamic(d.feature_modulator(features[3])), d.token.basic_queries.weight.repeat(2, 1, 1)
    torch.testing.assert_close(model(x), decode(dynamic), rtol=1e-4, atol=1e-4)
    d.training = True
    torch.testing.assert_close(model(x).aux[0], decode(static), rtol=1e-4, atol=1e-4)
