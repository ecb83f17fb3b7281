"""Products and convolutions with packed weights against float64 formulas, and where they are not to be taken."""

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from crispseg.ops import only
from crispseg.ops.common.hardware import multiplies_bfloat16
from crispseg.ops.cpu import onednn
from crispseg.ops.dispatch import why_not_on_a_cpu
from tests.conftest import relative_error

pytestmark = pytest.mark.skipif(why_not_on_a_cpu("onednn") is not None, reason="needs torch with oneDNN")

# Imitated where the processor has no instructions for bfloat16: the same numbers, only slower.
PRECISIONS = [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)]
ACTIVATIONS = {"none": lambda x: x, "relu": torch.relu, "swish": functional.silu}


@pytest.fixture(autouse=True)
def _inference():
    with torch.no_grad():
        yield


@pytest.mark.parametrize(("dtype", "most"), PRECISIONS)
@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("relu", [False, True])
def test_a_product_for_any_number_of_rows(relu, scale, dtype, most):
    weight, bias = torch.randn(13, 10).to(dtype), torch.randn(13).to(dtype)
    product = onednn.Linear.of(weight, bias, "relu" if relu else "none")
    for rows in (1, 2, 17, 300):
        x = scale * torch.randn(rows, 10).to(dtype)
        truth = x.double() @ weight.double().t() + bias.double()
        assert product(x).dtype == dtype
        assert relative_error(product(x), truth.relu() if relu else truth) < most


@pytest.mark.parametrize(("dtype", "most"), PRECISIONS)
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_a_product_added_to_a_residual_that_stays_as_it_is(scale, dtype, most):
    weight, bias = torch.randn(13, 10).to(dtype), torch.randn(13).to(dtype)
    for rows in (1, 17, 300):
        x, residual = scale * torch.randn(rows, 10).to(dtype), scale * torch.randn(rows, 13).to(dtype)
        before = residual.clone()
        truth = residual.double() + x.double() @ weight.double().t()
        assert relative_error(onednn.linear_added_to(residual, x, weight), truth) < most
        found = onednn.Linear.of(weight, bias).added_to(residual, x)
        assert relative_error(found, truth + bias.double()) < most
        assert torch.equal(residual, before)


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_a_product_that_ends_in_the_exact_gelu(scale):
    weight, bias = torch.randn(40, 10), torch.randn(40)
    x = scale * torch.randn(17, 10)
    truth = functional.gelu(x.double() @ weight.double().t() + bias.double())
    assert relative_error(onednn.Linear.of(weight, bias, "gelu")(x), truth) < 1e-6


@pytest.mark.parametrize(("dtype", "most"), PRECISIONS)
def test_a_product_with_weights_as_they_are(dtype, most):
    x, weight = torch.randn(7, 16).to(dtype)[:, 3:9], torch.randn(6, 5).to(dtype).t()
    assert relative_error(onednn.linear(x, weight), x.double() @ weight.double().t()) < most
    turned = x.t().contiguous().t()
    assert relative_error(onednn.linear(turned, weight), x.double() @ weight.double().t()) < most


@pytest.mark.parametrize(("dtype", "most"), PRECISIONS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("groups", "stride", "kernel"), [(1, 1, 3), (1, 2, 3), (8, 1, 3), (8, 2, 3), (1, 1, 1), (2, 1, 5)]
)
def test_a_convolution_of_maps_of_any_size(groups, stride, kernel, activation, dtype, most):
    weight, bias = torch.randn(8, 8 // groups, kernel, kernel).to(dtype), torch.randn(8).to(dtype)
    padding = (kernel // 2, kernel // 2)
    convolution = onednn.Convolution.of(weight, bias, padding, (stride, stride), groups, activation)
    for size in [(1, 1, 1), (2, 9, 14), (1, 70, 33)]:
        x = torch.randn(*size, 8).to(dtype)
        truth = functional.conv2d(
            x.double().permute(0, 3, 1, 2), weight.double(), bias.double(), stride, padding, groups=groups
        )
        assert relative_error(convolution(x), ACTIVATIONS[activation](truth).permute(0, 2, 3, 1)) < most


@pytest.mark.filterwarnings("ignore:TF32")
def test_where_it_applies():
    x = torch.randn(2, 3)
    assert onednn.applies(x)
    assert not onednn.applies(x, x.double())
    assert not onednn.applies(x, x.bfloat16())
    assert not onednn.applies(x.half())
    assert onednn.applies(x.bfloat16()) == multiplies_bfloat16(torch.device("cpu"))
    assert not onednn.applies(x.to("meta"))
    with only("torch"):
        assert not onednn.applies(x)
    with torch.enable_grad():
        assert not onednn.applies(x)
    with torch.backends.mkldnn.flags(enabled=False):
        assert not onednn.applies(x)
    with FlopCounterMode(display=False):
        assert not onednn.applies(x)


@pytest.mark.parametrize("has_it", [False, True])
def test_bfloat16_where_the_processor_multiplies_in_it(monkeypatch, has_it):
    monkeypatch.setattr(onednn, "multiplies_bfloat16", lambda device: has_it)
    assert onednn.applies(torch.randn(2, 3).bfloat16()) == has_it


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_not_in_what_is_traced():
    seen = []

    def function(x):
        seen.append(onednn.applies(x))
        return x + 1

    torch.jit.trace(function, torch.ones(2), check_trace=False)
    assert seen and not any(seen)
