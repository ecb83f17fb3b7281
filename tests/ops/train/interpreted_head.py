"""The head's kernels with gradients through Triton's interpreter; run by `test_interpreted.py`."""

import math

import pytest
import torch

from crispseg.models.omp import OMPConfig, OMPHead
from crispseg.ops import dispatch
from crispseg.ops.maps import resizing_kernels
from crispseg.ops.train import cross_attention_kernels as attention
from crispseg.ops.train import matching_kernels as cosines
from tests.conftest import relative_error
from tests.ops.maps.test_maps import resized
from tests.ops.train.test_cross_attention import head_by_head
from tests.ops.train.test_matching import best_of, smooth_best_of

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


def agree(function, formula, tensors):
    """Results and gradients, in the tensors' precision and in float64."""
    exact = [x.detach().double().requires_grad_() for x in tensors]
    given = [x.detach().requires_grad_() for x in tensors]
    found, truth = function(*given), formula(*exact)
    bound = BOUNDS[tensors[0].dtype]
    assert found.shape == truth.shape
    assert relative_error(found, truth) < bound
    g = torch.randn_like(truth)
    truth.backward(g)
    found.backward(g.to(found.dtype))
    for x, true in zip(given, exact, strict=True):
        assert x.grad.dtype == x.dtype
        assert (x.grad - true.grad).norm() < bound * true.grad.norm() + 1e-5


def draw(*shape, dtype=torch.float32, scale=1.0):
    return (scale * torch.randn(shape)).to(dtype)


# pixels, tokens, heads, channels of a head
SIZES = [(37, 6, 8, 16), (64, 1, 1, 4), (5, 3, 2, 8), (33, 20, 4, 12), (16, 64, 3, 32), (1, 5, 8, 32)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("few", ["keys", "queries"])
def test_attention(size, few):
    pixels, tokens, heads, width = size
    many, some = draw(2, 2, pixels, heads * width), draw(2, 2, tokens, heads * width)
    inputs = (many[0], some[0], some[1]) if few == "keys" else (some[0], many[0], many[1])
    agree(ATTENTIONS[few](heads), head_by_head(heads), inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("few", ["keys", "queries"])
def test_attention_in_half_precision(few, dtype):
    many, some = draw(2, 1, 150, 32, dtype=dtype), draw(2, 1, 6, 32, dtype=dtype)
    inputs = (many[0], some[0], some[1]) if few == "keys" else (some[0], many[0], many[1])
    agree(ATTENTIONS[few](2), head_by_head(2), inputs)


@pytest.mark.parametrize("few", ["keys", "queries"])
def test_attention_with_large_scores(few):
    many, some = draw(2, 1, 40, 32, scale=30.0), draw(2, 1, 6, 32)
    inputs = (many[0], some[0], some[1]) if few == "keys" else (some[0], many[0], many[1])
    agree(ATTENTIONS[few](2), head_by_head(2), inputs)


ATTENTIONS = {
    "keys": lambda heads: lambda q, k, v: attention.pixels_read_tokens(q, torch.cat([k, v], -1), heads),
    "queries": lambda heads: lambda q, k, v: attention.tokens_read_pixels(q, torch.cat([k, v], -1), heads)[0],
}


def best_cosines(x, prototypes):
    best, winners, _ = cosines._best_match(x, prototypes, None)
    assert winners.max() < prototypes.shape[2]
    return best


# pixels, classes, prototypes of a class, channels
@pytest.mark.parametrize(
    "size", [(37, 6, 3, 64), (1, 1, 1, 4), (40, 20, 3, 24), (16, 5, 2, 256), (9, 2, 20, 200), (18, 40, 1, 16)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_best_cosines(size, dtype, scale):
    pixels, classes, count, width = size
    x = draw(2, pixels, width, dtype=dtype, scale=scale)
    prototypes = torch.nn.functional.normalize(torch.randn(2, classes, count, width), dim=-1)
    agree(best_cosines, best_of, (x, prototypes))


def test_a_descriptor_of_zeros():
    x = torch.zeros(1, 3, 16, requires_grad=True)
    prototypes = torch.randn(1, 2, 2, 16, requires_grad=True)
    best = best_cosines(x, prototypes)
    best.sum().backward()
    assert (best == 0).all()
    assert (prototypes.grad == 0).all()
    expected = 1e12 * prototypes.detach()[0, :, 0].sum(0)  # all tie: the first wins, as in torch
    torch.testing.assert_close(x.grad, expected.expand_as(x))


def smooth_best(x, prototypes, sharpness):
    values, every, _ = cosines._soft_match(x, prototypes, sharpness)
    assert every.shape == (*prototypes.shape[:3], x.shape[1])
    return values


def unit_prototypes(*shape):
    return torch.nn.functional.normalize(torch.randn(shape), dim=-1)


# pixels, classes, prototypes of a class, channels
@pytest.mark.parametrize(
    "size", [(37, 6, 3, 64), (1, 1, 1, 4), (33, 17, 5, 64), (19, 2, 3, 128), (18, 17, 1, 24), (20, 6, 5, 200)], ids=str
)
@pytest.mark.parametrize(
    ("sharpness", "dtype"), [(0.5, torch.bfloat16), (10.0, torch.float32), (1e3, torch.float32), (1e3, torch.bfloat16)]
)
def test_smooth_best_cosines(size, sharpness, dtype):
    pixels, classes, count, width = size
    x = draw(2, pixels, width, dtype=dtype, scale=30.0)
    agree_softly(x, unit_prototypes(2, classes, count, width), sharpness)


def agree_softly(x, prototypes, sharpness):
    """As `agree`, and the sharpness's gradient to one part in a thousand of what it is the sum of, in half precision
    too: its terms may cancel."""
    given = [y.detach().requires_grad_() for y in (x, prototypes, torch.tensor(sharpness))]
    exact = [y.detach().double().requires_grad_() for y in given]
    found, truth = smooth_best(*given), smooth_best_of(*exact)
    bound = BOUNDS[x.dtype]
    assert relative_error(found, truth) < 1e-5
    g = torch.randn_like(truth)
    found.backward(g.float())
    slopes = torch.autograd.grad(truth, exact[2], g.abs(), retain_graph=True)[0].abs()
    truth.backward(g)
    for y, true in zip(given[:2], exact[:2], strict=True):
        assert y.grad.dtype == y.dtype
        assert (y.grad - true.grad).norm() < bound * true.grad.norm() + 1e-7
    assert given[2].grad.shape == ()
    assert (given[2].grad - exact[2].grad).abs() <= 1e-3 * slopes


def test_smooth_gradients_of_pixels_close_to_their_prototypes():
    """Nearly all of the gradient lies along the pixel, and is taken away again."""
    prototypes = unit_prototypes(1, 3, 1, 64) + 0.005 * torch.randn(1, 3, 3, 64)
    prototypes = torch.nn.functional.normalize(prototypes, dim=-1)
    owner = torch.arange(50) % 3
    x = (prototypes[:, owner, 0] + 0.005 * torch.randn(1, 50, 64)).bfloat16().requires_grad_()
    g = torch.randn(1, 3, 50) * (owner == torch.arange(3)[:, None])
    sharpness = torch.tensor(20.0)
    smooth_best(x, prototypes, sharpness).backward(g)
    exact = x.detach().double().requires_grad_()
    smooth_best_of(exact, prototypes.double(), sharpness.double()).backward(g.double())
    assert relative_error(x.grad, exact.grad) < 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("count", "sharpness"), [(1, 3.0), (1, 5000.0), (4, 1e7)])
def test_one_prototype_or_very_sharp_is_hard_matching(count, sharpness, dtype):
    x, prototypes = draw(2, 37, 40, dtype=dtype), unit_prototypes(2, 6, count, 40)
    found = []
    for function in (best_cosines, lambda x, p: smooth_best(x, p, torch.tensor(sharpness))):
        given = [x.clone().requires_grad_(), prototypes.clone().requires_grad_()]
        values = function(*given)
        values.square().sum().backward()
        found.append((values, *(y.grad for y in given)))
    for hard, soft in zip(*found, strict=True):
        if count == 1:
            assert torch.equal(hard, soft)
        else:
            torch.testing.assert_close(hard, soft)


def test_a_descriptor_of_zeros_matched_softly():
    x = torch.zeros(1, 3, 16, requires_grad=True)
    prototypes = torch.randn(1, 2, 3, 16, requires_grad=True)
    sharpness = torch.tensor(8.0, requires_grad=True)
    values = smooth_best(x, prototypes, sharpness)
    values.sum().backward()
    torch.testing.assert_close(values, torch.full_like(values, math.log(3) / 8))
    assert (prototypes.grad == 0).all()
    torch.testing.assert_close(x.grad, (1e12 * prototypes.detach()[0].mean(1).sum(0)).expand_as(x))
    torch.testing.assert_close(sharpness.grad, torch.tensor(-6 * math.log(3) / 64))


SIZES_OF_MAPS = [
    ((4, 4), (8, 8)),
    ((3, 5), (7, 9)),
    ((1, 1), (5, 3)),
    ((2, 3), (16, 24)),
    ((6, 5), (6, 5)),
    ((9, 7), (4, 3)),
    ((8, 8), (2, 1)),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_resized_maps_in_half_precision(dtype):
    x, finer = draw(2, 3, 5, 20, dtype=dtype), draw(2, 7, 9, 20, dtype=dtype)
    agree(resizing_kernels._forward, lambda x, y: resized(x, (7, 9)) + y, (x, finer))


@pytest.mark.parametrize(("low", "size"), SIZES_OF_MAPS)
def test_resized_maps(low, size):
    x, finer = draw(1, *low, 20), draw(1, *size, 20)
    agree(resizing_kernels._forward, lambda x, y: resized(x, size) + y, (x, finer))


@pytest.mark.parametrize(("neck", "matching"), [("topdown", "max"), ("concat", "max"), ("topdown", "lse")])
def test_a_head_with_and_without_kernels(monkeypatch, neck, matching):
    widths = (8, 8, 16, 16)
    head = OMPHead(widths, 3, OMPConfig(dim=32, attention_heads=4, mlp_dim=32, neck=neck, matching=matching)).train()
    head.at_progress(0.5)
    features = [draw(1, w, 32 // s, 96 // s) for w, s in zip(widths, (4, 8, 16, 32), strict=True)]

    def step():
        head.zero_grad()
        logits = head(features).logits
        logits.square().mean().backward()
        return logits.detach(), torch.cat([p.grad.flatten() for p in head.parameters()])

    logits, gradients = step()
    for operator in dispatch.operators().values():
        monkeypatch.setattr(operator, "dtypes", dispatch.FLOATS)
    with dispatch.through_the_interpreter():
        by_kernels = step()
    assert relative_error(by_kernels[0], logits) < 1e-4
    assert relative_error(by_kernels[1], gradients) < 1e-4
