"""Products and convolutions with packed weights against float64 formulas, and where they are not to be taken."""

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from crispseg.ops import only
from crispseg.ops.cpu import onednn
from crispseg.ops.dispatch import why_not_on_a_cpu
from tests.conftest import relative_error

pytestmark = pytest.mark.skipif(why_not_on_a_cpu("onednn") is not None, reason="needs torch with oneDNN")


@pytest.fixture(autouse=True)
def _inference():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("relu", [False, True])
def test_a_product_for_any_number_of_rows(relu, scale):
    weight, bias = torch.randn(13, 10), torch.randn(13)
    product = onednn.Linear.of(weight, bias, "relu" if relu else "none")
    for rows in (1, 2, 17, 300):
        x = scale * torch.randn(rows, 10)
        truth = x.double() @ weight.double().t() + bias.double()
        assert relative_error(product(x), truth.relu() if relu else truth) < 1e-6


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_a_product_that_ends_in_the_exact_gelu(scale):
    weight, bias = torch.randn(40, 10), torch.randn(40)
    x = scale * torch.randn(17, 10)
    truth = functional.gelu(x.double() @ weight.double().t() + bias.double())
    assert relative_error(onednn.Linear.of(weight, bias, "gelu")(x), truth) < 1e-6


def test_a_product_with_weights_as_they_are():
    x, weight = torch.randn(7, 16)[:, 3:9], torch.randn(6, 5).t()
    assert relative_error(onednn.linear(x, weight), x.double() @ weight.double().t()) < 1e-6


@pytest.mark.parametrize(
    ("groups", "stride", "kernel"), [(1, 1, 3), (1, 2, 3), (8, 1, 3), (8, 2, 3), (1, 1, 1), (2, 1, 5)]
)
def test_a_convolution_of_maps_of_any_size(groups, stride, kernel):
    weight, bias = torch.randn(8, 8 // groups, kernel, kernel), torch.randn(8)
    padding = (kernel // 2, kernel // 2)
    convolution = onednn.Convolution.of(weight, bias, padding, (stride, stride), groups, relu=True)
    for size in [(1, 1, 1), (2, 9, 14), (1, 70, 33)]:
        x = torch.randn(*size, 8)
        truth = functional.conv2d(
            x.double().permute(0, 3, 1, 2), weight.double(), bias.double(), stride, padding, groups=groups
        )
        assert relative_error(convolution(x), truth.relu().permute(0, 2, 3, 1)) < 1e-6


@pytest.mark.filterwarnings("ignore:TF32")
def test_where_it_applies():
    x = torch.randn(2, 3)
    assert onednn.applies(x)
    assert not onednn.applies(x, x.double())
    assert not onednn.applies(x.bfloat16())
    assert not onednn.applies(x.to("meta"))
    with only("torch"):
        assert not onednn.applies(x)
    with torch.enable_grad():
        assert not onednn.applies(x)
    with torch.backends.mkldnn.flags(enabled=False):
        assert not onednn.applies(x)
    with FlopCounterMode(display=False):
        assert not onednn.applies(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_not_in_what_is_traced():
    seen = []

    def function(x):
        seen.append(onednn.applies(x))
        return x + 1

    torch.jit.trace(function, torch.ones(2), check_trace=False)
    assert seen and not any(seen)
