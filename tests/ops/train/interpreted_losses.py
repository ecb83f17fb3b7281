"""The kernels of the losses through Triton's interpreter; run by `test_interpreted.py`."""

import pytest
import torch

from crispseg.losses import margin_loss, orthogonality_loss
from crispseg.ops.train import cross_entropy as losses
from crispseg.ops.train import cross_entropy_kernels as kernels
from crispseg.ops.train import prototype_terms as terms
from tests.ops.train.test_cross_entropy import SIZES, check, make


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_against_float64(size, smoothing, scale):
    check(losses._cross_entropy, *make(size, scale), smoothing)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format], ids=str)
def test_half_precision_and_both_layouts(dtype, layout):
    logits, target = make((2, 5, 7, 9))
    check(losses._cross_entropy, logits.to(dtype).contiguous(memory_format=layout), target, 0.05)


def test_programs_that_take_many_blocks(monkeypatch):
    monkeypatch.setattr(kernels, "_PROGRAMS", 1)
    monkeypatch.setattr(kernels, "_ELEMENTS", 64)
    monkeypatch.setattr(kernels, "_PARTS", 1)
    check(losses._cross_entropy, *make((3, 4, 8, 17)), 0.0)


def test_only_ignored_pixels():
    logits, target = make((2, 3, 5, 5))
    logits[0, :, 0, 0] = float("nan")
    found, count = losses._cross_entropy(logits.requires_grad_(), torch.full_like(target, 255), 255, 0.1)
    assert (found.item(), count.item()) == (0.0, 0)
    (gradient,) = torch.autograd.grad(found, logits)
    assert not gradient.any()


def test_a_class_that_cannot_be_is_no_trouble_unless_it_is_the_truth():
    logits, target = make((1, 4, 6, 6), ignored=0.0)
    logits[:, 3] = float("-inf")
    check(losses._cross_entropy, logits, target.clamp(max=2), 0.0)
    assert losses._cross_entropy(logits, torch.full_like(target, 3), 255, 0.0)[0] == float("inf")


@pytest.mark.parametrize("label", [-1, 4, 200])
def test_a_label_of_no_class_makes_the_loss_nan(label):
    logits, target = make((1, 4, 6, 6))
    target[0, 3, 3] = label
    assert losses._cross_entropy(logits, target, 255, 0.0)[0].isnan()


def test_the_operator_is_registered_well():
    logits, target = make((2, 3, 4, 5))
    torch.library.opcheck(losses._cross_entropy, (logits.requires_grad_(), target, 255, 0.1))
    compiled = torch.compile(losses._cross_entropy, fullgraph=True, backend="aot_eager")
    check(compiled, logits.detach(), target, 0.1)


# images, classes, prototypes of a class, channels
@pytest.mark.parametrize("size", [(3, 6, 3, 24), (1, 1, 1, 4), (2, 5, 1, 16), (2, 2, 16, 8), (1, 3, 2, 200)], ids=str)
@pytest.mark.parametrize("delta", [0.1, 0.5, 1.5])
def test_prototype_terms(size, delta):
    check_prototypes(lambda x: terms._prototype_terms(x, delta)[:2], size, delta)


def test_opposite_prototypes_have_no_mean():
    x = torch.eye(4)[None, :2, None] * torch.tensor([1.0, -1.0])[:, None]  # (1, 2, 2, 4)
    orth, margin, d_orth, d_margin = terms._prototype_terms(x, 0.5)
    assert (orth.item(), margin.item()) == (1.0, 0.0)
    assert d_orth.isfinite().all()
    assert not d_margin.any()


def test_prototype_terms_are_registered_well():
    x = torch.nn.functional.normalize(torch.randn(2, 3, 2, 8), dim=-1)
    torch.library.opcheck(terms._prototype_terms, (x.requires_grad_(), 0.5))


def check_prototypes(function, size, delta):
    """Terms, and the gradient of a mixture of both, against the formulas in float64."""
    x = torch.nn.functional.normalize(torch.randn(size), dim=-1)
    x, wide = x.requires_grad_(), x.detach().double().requires_grad_()
    found, truth = function(x), (orthogonality_loss(wide), margin_loss(wide, delta))
    for f, t in zip(found, truth, strict=True):
        assert abs(f.item() - t.item()) < 1e-5 * abs(t.item()) + 1e-6
    (0.7 * found[0] + 0.3 * found[1]).backward()
    (0.7 * truth[0] + 0.3 * truth[1]).backward()
    assert (x.grad - wide.grad).norm() < 1e-5 * wide.grad.norm() + 1e-6
