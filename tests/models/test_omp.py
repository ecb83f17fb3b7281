"""Each step of the OMP head against its formula written out."""

import math

import pytest
import torch
from torch.nn import functional as F

import crispseg
from crispseg.errors import UserError
from crispseg.models.omp import (
    Attention,
    ConcatNeck,
    DynamicTokens,
    HyperNetwork,
    OMPConfig,
    OMPHead,
    TopDownNeck,
    TwoWayLayer,
    WholePixels,
)
from crispseg.ops.train.matching import match

WIDTHS = (8, 16, 24, 32)


def make_features(batch=2, height=64, width=96, widths=WIDTHS):
    return [torch.randn(batch, w, -(-height // s), -(-width // s)) for w, s in zip(widths, (4, 8, 16, 32), strict=True)]


def make_head(classes=5, **options):
    return OMPHead(WIDTHS, classes, OMPConfig(**{"dim": 32, "attention_heads": 4, "mlp_dim": 48, **options})).eval()


def test_concat_neck_formula():
    neck, features = ConcatNeck(WIDTHS, 12), make_features()
    size = features[0].shape[-2:]
    maps = []
    for linear, x in zip(neck.lateral, features, strict=True):
        y = torch.einsum("oc,bchw->bohw", linear.weight[:, :, 0, 0], x) + linear.bias[:, None, None]
        maps.append(F.interpolate(y, size=size, mode="bilinear", align_corners=False))
    expected = torch.einsum("oc,bchw->bohw", neck.mix.weight[:, :, 0, 0], torch.cat(maps, 1))
    torch.testing.assert_close(neck(features), expected, rtol=1e-4, atol=1e-5)


def test_topdown_neck_formula():
    neck, features = TopDownNeck(WIDTHS, 12).eval(), make_features()
    x = None
    for layer, feature in reversed(list(zip(neck.lateral, features, strict=True))):
        y = torch.relu(layer.norm(layer.conv(feature)))
        x = y if x is None else y + F.interpolate(x, size=y.shape[-2:], mode="bilinear", align_corners=False)
    expected = torch.relu(neck.mix.norm(neck.mix.conv(x)))
    torch.testing.assert_close(neck(features), expected)


def test_dynamic_tokens_are_weighted_candidates():
    tokens = DynamicTokens(32, num_classes=3, dim=8, candidates=4)
    feature = torch.randn(2, 32, 3, 5)
    reduced = feature.flatten(2).transpose(1, 2) @ tokens.reduce.weight.T + tokens.reduce.bias  # (B, L, 8)
    context = torch.cat(
        [tokens.from_max(reduced[..., :4].max(1).values), tokens.from_mean(reduced[..., 4:].mean(1))], -1
    )
    logits = tokens.weigh(context)
    for b in range(2):
        for c in range(3):
            weights = torch.softmax(logits[b, 4 * c : 4 * c + 4], 0)
            candidates = (tokens.expand.weight @ tokens.embedding[c] + tokens.expand.bias).view(4, 8)
            expected = sum(weights[m] * candidates[m] for m in range(4))
            torch.testing.assert_close(tokens(feature)[b, c], expected, rtol=1e-4, atol=1e-5)
    weights = tokens.weights(reduced[..., :4].amax(1), reduced[..., 4:].mean(1))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))


def test_attention_formula():
    attention = Attention(dim=12, inner=6, heads=3)
    query, source = torch.randn(2, 4, 12), torch.randn(2, 7, 12)
    q, k, v = attention.q(query), attention.k(source), attention.v(source)
    heads = []
    for h in range(3):
        part = slice(2 * h, 2 * h + 2)
        weights = torch.softmax(q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(2), -1)
        heads.append(weights @ v[..., part])
    torch.testing.assert_close(attention(query, source), attention.out(torch.cat(heads, -1)))


def test_two_way_layer_order():
    layer = TwoWayLayer(dim=12, heads=3, mlp_dim=20)
    tokens, pixels = torch.randn(1, 4, 12), torch.randn(1, 9, 12)
    t = layer.norm1(tokens + layer.self_attention(tokens, tokens))
    t = layer.norm2(t + layer.tokens_to_pixels(t, pixels))
    t = layer.norm3(t + layer.mlp(t))
    p = layer.norm4(pixels + layer.pixels_to_tokens(pixels, t))
    found = layer(tokens, WholePixels(pixels))
    torch.testing.assert_close(found[0], t)
    torch.testing.assert_close(found[1].values, p)


@pytest.mark.parametrize("groups", [1, 3], ids=["shared", "per class"])
def test_hyper_network_formula(groups):
    network = HyperNetwork(dim=6, prototypes=2, descriptor_dim=4, groups=groups)
    tokens = torch.randn(2, 3, 6)
    for b in range(2):
        for c in range(3):
            g = c if groups == 3 else 0
            x = tokens[b, c]
            for i, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
                x = x @ weight[g] + bias[g, 0]
                x = torch.relu(x) if i < 2 else x
            torch.testing.assert_close(network(tokens)[b, c], x.view(2, 4))


def test_match_is_the_cosine():
    descriptors, prototypes = torch.randn(2, 5, 3, 4), F.normalize(torch.randn(2, 3, 2, 5), dim=-1)
    scores = match(descriptors, prototypes)
    for b, c, k, y, x in [(0, 0, 0, 0, 0), (1, 2, 1, 2, 3), (0, 1, 1, 1, 2)]:
        expected = F.cosine_similarity(descriptors[b, :, y, x], prototypes[b, c, k], dim=0)
        torch.testing.assert_close(scores[b, c, k, y, x], expected)


@pytest.mark.parametrize("neck", ["concat", "topdown"])
@pytest.mark.parametrize("classes", [1, 2, 9])
@pytest.mark.parametrize("prototypes", [1, 2, 5])
def test_any_number_of_classes_and_prototypes(neck, classes, prototypes):
    head = make_head(classes, neck=neck, prototypes=prototypes)
    matched = head(make_features(), allocation=True)
    stride = 2 if neck == "concat" else 4
    assert matched.logits.shape == matched.allocation.shape == (2, classes, 64 // stride, 96 // stride)
    assert matched.prototypes.shape[:3] == (2, classes, prototypes)
    torch.testing.assert_close(matched.prototypes.norm(dim=-1), torch.ones(2, classes, prototypes))
    assert (matched.logits.abs() <= head.scale() * (1 + 1e-5)).all()
    assert matched.allocation.min() >= 0 and matched.allocation.max() < prototypes


def test_soft_matching_is_a_log_sum_exp_that_ends_in_the_maximum():
    head, features = make_head(matching="lse"), make_features()
    head.training = True  # but not its BatchNorms
    tokens, pixels = head.interact(features)
    matches = match(pixels, F.normalize(head.hyper(tokens), dim=-1)) * head.scale()
    for progress, softness in [(0.0, 1.0), (0.3, 0.6), (0.9, 0.02), (1.0, 0.02)]:
        head.at_progress(progress)
        expected = softness * (matches.double() / softness).exp().sum(2).log()
        torch.testing.assert_close(head(features).logits.double(), expected, rtol=1e-5, atol=1e-5)
    assert (head(features).logits - matches.amax(2)).abs().max() < 0.02 * math.log(3) + 1e-5
    torch.testing.assert_close(head.eval()(features).logits, matches.amax(2))


def test_gradients_of_soft_matching_are_those_of_the_log_sum_exp():
    """The learned scale is in it twice: as a factor, and in how sharp the maximum is."""
    head, features = make_head(matching="lse").double(), [x.double() for x in make_features()]
    head.training = True
    head.at_progress(0.3)
    weights = torch.randn(5, 1, 1, dtype=torch.float64)

    def gradients(logits):
        return torch.autograd.grad((logits * weights).sum(), [head.log_scale, *head.hyper.parameters()])

    found = gradients(head(features).logits)
    tokens, pixels = head.interact(features)
    matches = match(pixels, F.normalize(head.hyper(tokens), dim=-1)) * head.scale()
    for mine, truth in zip(found, gradients(0.6 * torch.logsumexp(matches / 0.6, 2)), strict=True):
        torch.testing.assert_close(mine, truth, rtol=1e-5, atol=1e-8)


def test_logits_of_every_prototype_are_made_where_matching_is_soft():
    head, features = make_head(matching="lse"), make_features()
    assert head(features).matches is None  # in evaluation
    head.training = True
    tokens, pixels = head.interact(features)
    matches = match(pixels, F.normalize(head.hyper(tokens), dim=-1)) * head.scale()
    torch.testing.assert_close(head(features).matches.logits(), matches)
    assert make_head().train()(features).matches is None


def test_soft_matching_gives_every_prototype_gradients():
    def gradients(matching):
        torch.manual_seed(0)
        head = make_head(matching=matching).train()
        head(make_features()).logits.sum().backward()
        return head.hyper.biases[-1].grad.view(-1, 3, head.config.descriptor_dim).abs().sum(-1)  # (classes, K)

    assert (gradients("lse") > 0).all()


def test_centred_pixels_have_mean_zero_in_training():
    head = make_head(centred=True).train()
    _, pixels = head.interact(make_features())
    assert pixels.mean((0, 2, 3)).abs().max() < 1e-5


def test_centring_has_the_gradients_of_its_formula():
    """torch's BatchNorm on a CPU has wrong ones for a map whose strides do not say which way it lies."""
    draws = torch.Generator().manual_seed(0)
    head, wanted = make_head(centred=True).train().double(), torch.randn(2, 35, 32, generator=draws).double()
    pixels = torch.randn(2, 35, 32, generator=draws).double().requires_grad_()
    mean, variance = pixels.mean((0, 1)), pixels.var((0, 1), unbiased=False)
    expected = (pixels - mean) / (variance + head.centre.eps).sqrt()
    found = head._centred(pixels)
    torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad((found * wanted).sum(), pixels)
    torch.testing.assert_close(gradient, torch.autograd.grad((expected * wanted).sum(), pixels)[0])


def test_allocation_names_the_winning_prototype():
    head, features = make_head(), make_features()
    matched = head(features, allocation=True)
    _, descriptors = head.interact(features)
    scores = match(descriptors, matched.prototypes)
    torch.testing.assert_close(scores.gather(2, matched.allocation[:, :, None])[:, :, 0] * head.scale(), matched.logits)


def test_logit_scale_is_clamped():
    head = make_head()
    assert head.scale().item() == pytest.approx(10.0)
    for value, bound in ((50.0, 100.0), (-50.0, 1.0)):
        head.log_scale.data.fill_(value)
        assert head.scale().item() == pytest.approx(bound, rel=1e-5)


def test_only_the_class_parts_grow_with_the_classes():
    """The shared reading: 256 + 4 x 513 parameters per class, the bank and the weights of its candidates."""
    sizes = []
    for classes in (5, 6):
        with torch.device("meta"):
            model = crispseg.create_model("crisp_tiny", classes, neck="concat")
        sizes.append(sum(p.numel() for p in model.head.parameters()))
    assert sizes[1] - sizes[0] == 256 + 4 * 513


def test_reconstructed_size_of_the_head():
    with torch.device("meta"):
        head = crispseg.create_model("crisp_tiny", 5, neck="concat").head
    assert sum(p.numel() for p in head.parameters()) == 6_131_284 + 1  # and the logit scale


def test_clear_errors():
    with pytest.raises(UserError, match="prototypes must be from 1"):
        make_head(prototypes=0)
    with pytest.raises(UserError, match="descriptor_stride 2 a descriptor has dim / 4 = 8"):
        make_head(neck="concat", descriptor_dim=32)
    with pytest.raises(UserError, match="descriptor_stride 4 descriptor_dim must equal dim"):
        make_head(descriptor_dim=8)
    with pytest.raises(UserError, match="do not divide the inner width 32"):
        make_head(attention_heads=5)
