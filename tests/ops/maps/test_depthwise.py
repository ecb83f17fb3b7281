"""Depthwise 3x3 against nine shifted products in float64. The kernels' tests are in `interpreted_depthwise.py` and
`test_depthwise_gpu.py`."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crispseg.errors import UserError
from crispseg.ops.maps.depthwise import depthwise3x3, packed
from tests.conftest import relative_error

BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
ACTIVATIONS = {"none": lambda x: x, "silu": lambda x: x * torch.sigmoid(x), "relu": lambda x: x.clamp(min=0)}


def shifted_products(x, weight, bias=None, residual=False, activation="none", stride=1):
    """The definition: one product for each of the nine places, on the zero-padded map."""
    height, width = x.shape[1:3]
    framed = torch.nn.functional.pad(x, (0, 0, 1, 1, 1, 1))
    y = sum(
        framed[:, i : i + height : stride, j : j + width : stride] * weight[:, 0, i, j]
        for i, j in itertools.product(range(3), repeat=2)
    )
    y = ACTIVATIONS[activation](y if bias is None else y + bias)
    return y + x if residual else y


def make_map(size, dtype=torch.float32, batch=2, scale=1.0, margin=0, device="cpu"):
    """A map (B, H, W, C); with a margin, a view into one that is wider by so many channels on either side."""
    height, width, channels = size
    wide = scale * torch.randn(batch, height, width, channels + 2 * margin, device=device)
    return wide.to(dtype)[..., margin : margin + channels]


def make_weights(channels, dtype=torch.float32, device="cpu"):
    return torch.randn(channels, 1, 3, 3, device=device).to(dtype), torch.randn(channels, device=device).to(dtype)


def check(function, x, weight, bias, residual=False, activation="none", stride=1):
    """Result and gradients against the definition in float64, each within the bound of x's dtype."""
    bound = BOUNDS[x.dtype]
    leaves = [v.detach().requires_grad_() for v in (x, weight, bias) if v is not None]
    wide = [v.detach().double().requires_grad_() for v in leaves]
    result = function(*leaves[:2], None if bias is None else leaves[2], residual, activation, stride)
    truth = shifted_products(*wide, residual=residual, activation=activation, stride=stride)
    assert result.dtype == x.dtype
    assert relative_error(result, truth) < bound
    gradient = torch.randn_like(result)
    if activation == "relu":  # where its argument is all but zero, rounding decides on the derivative
        kink = shifted_products(*(v.detach() for v in wide), stride=stride).abs()
        gradient = gradient.masked_fill(kink < 1e-4 * kink.max(), 0)
    found = torch.autograd.grad(result, leaves, gradient)
    expected = torch.autograd.grad(truth, wide, gradient.double())
    for name, leaf, f, e in zip(("x", "weight", "bias"), leaves, found, expected, strict=False):
        assert f.dtype == leaf.dtype
        assert f.shape == leaf.shape
        assert relative_error(f, e) < bound, name


def check_written_gradient(size, margin, activation, residual, stride, dtype=torch.float32, device="cpu"):
    """The kernels' gradient for x, written into a view of a wider map, which is left as it was beside it."""
    from crispseg.ops.maps import depthwise_gradients
    from crispseg.ops.maps.depthwise_kernels import Depthwise

    x, (weight, bias) = make_map(size, dtype, margin=margin, device=device), make_weights(size[2], device=device)
    wide = x.double().requires_grad_()
    truth = shifted_products(wide, weight.double(), bias.double(), residual, activation, stride)
    gradient = torch.randn(truth.shape, device=device).to(dtype)
    around = torch.full((*x.shape[:3], size[2] + 2 * margin), 7.0, dtype=dtype, device=device)
    out = around[..., margin : margin + size[2]]
    asked = Depthwise(weight, bias, residual, activation, stride)
    depthwise_gradients.backward(gradient, x, asked, out=out)
    assert relative_error(out, torch.autograd.grad(truth, wide, gradient.double())[0]) < BOUNDS[dtype]
    assert bool((around[..., :margin] == 7).all())
    assert bool((around[..., margin + size[2] :] == 7).all())


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("stride", [1, 2])
def test_a_view_gives_a_channels_last_map(activation, stride):
    """And without gradients, too, the view stays as it was."""
    x, (weight, bias) = make_map((9, 7, 6), margin=3), make_weights(6)
    before = x.clone()
    with torch.no_grad():
        y = depthwise3x3(x, weight, bias, activation=activation, stride=stride)
    assert y.is_contiguous()
    assert torch.equal(x, before)
    truth = shifted_products(x.double(), weight.double(), bias.double(), activation=activation, stride=stride)
    assert relative_error(y, truth) < BOUNDS[x.dtype]


def public(x, weight, bias, residual, activation, stride):
    return depthwise3x3(x, weight, bias, residual=residual, activation=activation, stride=stride)


@given(
    batch=st.integers(1, 3),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 6)),
    margin=st.integers(0, 3),
    activation=st.sampled_from(list(ACTIVATIONS)),
    shape=st.sampled_from([(1, False), (1, True), (2, False)]),
    with_bias=st.booleans(),
)
def test_any_size(batch, size, margin, activation, shape, with_bias):
    stride, residual = shape
    weight, bias = make_weights(size[2], torch.float64)
    x = make_map(size, torch.float64, batch, margin=margin)
    check(public, x, weight, bias if with_bias else None, residual, activation, stride)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_map_with_float32_weights(dtype):
    check(public, make_map((7, 6, 5), dtype), *make_weights(5), activation="silu")


def test_packing_changes_the_order_in_memory_only():
    weight, _ = make_weights(6)
    assert torch.equal(packed(weight), weight)
    assert packed(weight).stride(0) == 1


def test_mistakes():
    x, (weight, bias) = make_map((4, 4, 3)), make_weights(3)
    with pytest.raises(UserError, match="unknown activation 'sil'.*silu"):
        depthwise3x3(x, weight, bias, activation="sil")
    with pytest.raises(UserError, match="stride 1, or 2 without residual"):
        depthwise3x3(x, weight, bias, residual=True, stride=2)
