import pytest
import torch
from torch import nn

from crispseg.fused.fold import fold_batchnorms
from tests.fused.models import unsettled


class Uses(nn.Module):
    """Convolutions and BatchNorms in the given order; `plan` says what else happens to them."""

    def __init__(self, plan):
        super().__init__()
        self.plan = plan
        self.conv, self.norm, self.other = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x):
        y = self.conv(x)
        if self.plan == "read twice":
            return self.norm(y) + y
        if self.plan == "viewed elsewhere":
            return self.norm(y) + y.flatten(2).mean(-1)[..., None, None]
        if self.plan == "two norms":
            return self.norm(y) + self.other(y)
        if self.plan == "convolved twice":
            return self.norm(self.conv(y))
        if self.plan == "normed twice":
            return self.norm(y) + self.norm(x)
        if self.plan == "something between":
            return self.norm(torch.relu(y))
        return self.other(self.norm(y))  # "in a row": the second norm reads no convolution


PLANS = {
    "in a row": 1,
    "read twice": 0,
    "viewed elsewhere": 0,
    "two norms": 0,
    "convolved twice": 0,
    "normed twice": 0,
    "something between": 0,
}


@pytest.mark.parametrize("plan", PLANS)
def test_only_what_may_be_folded_is(plan):
    model = unsettled(Uses(plan)).double()
    images = torch.randn(2, 3, 9, 11, dtype=torch.float64)
    with torch.no_grad():
        truth = model(images)
        assert fold_batchnorms(model, 3) == PLANS[plan]
        torch.testing.assert_close(model(images), truth, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("groups", [1, 4])
def test_every_kind_of_convolution_and_norm(bias, affine, groups):
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, stride=2, groups=groups, bias=bias), nn.BatchNorm2d(8, affine=affine, eps=1e-2), nn.ReLU()
    ).double()
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 2.0)
    images = torch.randn(2, 4, 15, 12, dtype=torch.float64)
    model.eval()
    with torch.no_grad():
        truth = model(images)
        assert fold_batchnorms(model, 4) == 1
        torch.testing.assert_close(model(images), truth, rtol=1e-12, atol=1e-12)
    assert isinstance(model[1], nn.Identity)


def test_a_norm_without_statistics_stays():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, track_running_stats=False)).eval()
    assert fold_batchnorms(model, 3) == 0
