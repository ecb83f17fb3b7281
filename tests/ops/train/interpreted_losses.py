"""The kernels of the losses through Triton's interpreter; run by `test_interpreted.py`."""

import pytest
import torch

from crispseg.ops.train import cross_entropy_kernels as kernels
from tests.ops.train.test_cross_entropy import SIZES, check, make


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_against_float64(size, smoothing, scale):
    check(kernels._forward, *make(size, scale), smoothing)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format], ids=str)
def test_half_precision_and_both_layouts(dtype, layout):
    logits, target = make((2, 5, 7, 9))
    check(kernels._forward, logits.to(dtype).contiguous(memory_format=layout), target, 0.05)


def test_programs_that_take_many_blocks(monkeypatch):
    monkeypatch.setattr(kernels, "_PROGRAMS", 1)
    monkeypatch.setattr(kernels, "_ELEMENTS", 64)
    monkeypatch.setattr(kernels, "_PARTS", 1)
    check(kernels._forward, *make((3, 4, 8, 17)), 0.0)


def test_only_ignored_pixels():
    logits, target = make((2, 3, 5, 5))
    logits[0, :, 0, 0] = float("nan")
    found, count = kernels._forward(logits.requires_grad_(), torch.full_like(target, 255), 255, 0.1)
    assert (found.item(), count.item()) == (0.0, 0)
    (gradient,) = torch.autograd.grad(found, logits)
    assert not gradient.any()


def test_a_class_that_cannot_be_is_no_trouble_unless_it_is_the_truth():
    logits, target = make((1, 4, 6, 6), ignored=0.0)
    logits[:, 3] = float("-inf")
    check(kernels._forward, logits, target.clamp(max=2), 0.0)
    assert kernels._forward(logits, torch.full_like(target, 3), 255, 0.0)[0] == float("inf")


@pytest.mark.parametrize("label", [-1, 4, 200])
def test_a_label_of_no_class_makes_the_loss_nan(label):
    logits, target = make((1, 4, 6, 6))
    target[0, 3, 3] = label
    assert kernels._forward(logits, target, 255, 0.0)[0].isnan()


def test_the_operator_is_registered_well():
    logits, target = make((2, 3, 4, 5))
    torch.library.opcheck(kernels._forward, (logits.requires_grad_(), target, 255, 0.1))
    compiled = torch.compile(kernels._forward, fullgraph=True, backend="aot_eager")
    check(compiled, logits.detach(), target, 0.1)
