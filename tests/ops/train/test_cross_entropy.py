"""The cross-entropy against its formula in float64, on a GPU too. Through the interpreter: `interpreted_losses.py`."""

import pytest
import torch

from crispseg.losses import cross_entropy
from crispseg.ops.train import cross_entropy as losses
from crispseg.ops.train.cross_entropy import summed_cross_entropy
from tests.conftest import relative_error

SIZES = [(2, 6, 8, 12), (1, 1, 1, 1), (3, 2, 5, 7), (1, 150, 3, 9), (2, 7, 1, 33), (1, 256, 4, 4)]
BOUNDS = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 1e-3}  # of gradients, rounded as logits are


def make(size, scale=1.0, ignored=0.3, device="cpu"):
    batch, classes, height, width = size
    target = torch.randint(0, classes, (batch, height, width), device=device)
    target[torch.rand(target.shape, device=device) < ignored] = 255
    return scale * torch.randn(size, device=device), target


def formula(logits, target, smoothing):
    """-log p of the label and the mean of -log p over classes, mixed; summed over labelled pixels."""
    log_p = logits - logits.logsumexp(1, keepdim=True)
    valid = target != 255
    own = log_p.gather(1, target.where(valid, 0)[:, None])[:, 0]
    mixed = (1 - smoothing) * own + (smoothing * log_p.mean(1) if smoothing else 0.0)
    return -mixed[valid].sum(), valid.sum()


def check(function, logits, target, smoothing):
    logits, wide = logits.detach().requires_grad_(), logits.detach().double().requires_grad_()
    (found, count), (truth, expected) = function(logits, target, 255, smoothing), formula(wide, target, smoothing)
    assert found.dtype == torch.float32
    assert count.item() == expected.item()
    assert (found - truth).abs() <= 1e-6 * truth.abs()
    factor = torch.tensor(0.37, device=found.device)
    (gradient,) = torch.autograd.grad(found, logits, factor)
    (exact,) = torch.autograd.grad(truth, wide, factor.double())
    assert gradient.dtype == logits.dtype
    assert gradient.stride() == logits.stride()
    assert (gradient - exact).norm() <= BOUNDS[logits.dtype] * exact.norm() + 1e-12


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_without_kernels(size, smoothing):
    check(summed_cross_entropy, *make(size), smoothing)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnAGPU:
    @pytest.mark.parametrize("size", [*SIZES, (4, 6, 512, 512), (2, 19, 333, 501)], ids=str)
    @pytest.mark.parametrize("dtype", BOUNDS, ids=str)
    @pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format], ids=str)
    def test_against_float64(self, size, dtype, layout, monkeypatch):
        monkeypatch.delenv("CRISPSEG_OPS_BACKEND", raising=False)
        monkeypatch.setattr(losses.functional, "cross_entropy", None)
        logits, target = make(size, device="cuda")
        check(summed_cross_entropy, logits.to(dtype).contiguous(memory_format=layout), target, 0.1)
        cut = logits[..., 1:] if size[3] > 1 else logits
        found = cross_entropy(cut, target[..., -cut.shape[3] :])
        truth, count = formula(cut.double(), target[..., -cut.shape[3] :], 0.0)
        assert relative_error(found, truth / count.clamp(min=1)) < 1e-6

    def test_the_same_bits_every_time(self):
        logits, target = make((8, 6, 257, 255), device="cuda")
        assert len({summed_cross_entropy(logits, target, 255)[0].item() for _ in range(5)}) == 1
