"""The positive feature against elu + 1 in float64, and its derivative, also where its two halves meet."""

import math

import torch

from crispseg.ops.nc_ssd.spec import positive_feature


def test_positive_feature():
    x = torch.tensor([-math.inf, -80.0, -1e-3, -0.0, 0.0, 1e-3, 3.0, 1e30, math.inf], requires_grad=True)
    y = positive_feature(x)
    wide = x.detach().double()
    truth = torch.where(wide > 0, wide + 1, wide.exp())
    torch.testing.assert_close(y, truth.float(), rtol=2e-7, atol=0)
    (slope,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(slope, wide.clamp(max=0).exp().float(), rtol=2e-7, atol=0)


def test_positive_feature_of_nan_is_nan():
    assert positive_feature(torch.tensor([math.nan])).isnan().all()
