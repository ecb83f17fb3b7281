"""Products of training and their gradients against the formula in float64, and where they are not to be taken."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import crispseg
from crispseg.ops import off, only
from crispseg.ops.cpu import training
from crispseg.ops.cpu.training import WAY, fast_products
from crispseg.ops.dispatch import why_not_on_a_cpu
from tests.conftest import relative_error

pytestmark = pytest.mark.skipif(why_not_on_a_cpu(WAY) is not None, reason="needs torch with oneDNN")

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _all_sizes(monkeypatch):
    monkeypatch.setattr(training, "_LEAST", 1)


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def taken(y):
    return any(type(node).__name__ == "_ProductBackward" for node in _graph(y.grad_fn))


def _graph(node):
    if node is not None:
        yield node
        for following, _ in node.next_functions:
            yield from _graph(following)


def leaves(*shapes, scale=1.0):
    return [(scale * torch.randn(shape)).requires_grad_() for shape in shapes]


def check(found, truth, inputs, wide):
    """`truth` is of `wide`, the inputs in float64."""
    assert taken(found)
    assert relative_error(found, truth) < 1e-6
    gradient = torch.randn(found.shape).transpose(1, -1).contiguous().transpose(1, -1)
    ours = torch.autograd.grad(found, inputs, gradient)
    theirs = torch.autograd.grad(truth, wide, gradient.double())
    for own, true in zip(ours, theirs, strict=True):
        assert own.shape == true.shape
        assert relative_error(own, true) < 2e-6


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 5, 24), (2, 1, 3, 40), (1, 1, 1, 7), (3, 400, 1, 9)])
def test_linear(shape, biased, scale):
    inputs = [*leaves(shape, scale=scale), *leaves((13, shape[-1])), *(leaves((13,)) if biased else [])]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    with fast_products(CPU):
        found = functional.linear(*inputs)
    check(found, functional.linear(*wide), inputs, wide)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", [(2, 24, 3, 5), (2, 7, 6, 4), (1, 40, 1, 1)])
def test_convolution_of_single_pixels(shape, biased):
    inputs = [*leaves(shape, (13, shape[1], 1, 1)), *(leaves((13,)) if biased else [])]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    with fast_products(CPU):
        found = functional.conv2d(inputs[0].contiguous(memory_format=torch.channels_last), *inputs[1:])
    assert found.is_contiguous(memory_format=torch.channels_last)
    check(found, functional.conv2d(*wide), inputs, wide)


def test_gradients_lie_as_channels_last_weights_do():
    """DDP warns of a gradient whose strides are others, if only along axes of length one."""
    layer = nn.Conv2d(24, 16, 1).to(memory_format=torch.channels_last)
    x = torch.randn(2, 24, 3, 5).contiguous(memory_format=torch.channels_last)
    with fast_products(CPU):
        y = layer(x)
    assert taken(y)
    y.sum().backward()
    assert layer.weight.grad.stride() == layer.weight.stride() == (24, 1, 24, 24)


def test_tensors_that_do_not_lie_side_by_side():
    x, weight = leaves((2, 9, 4, 24), (24, 30))
    inputs = [x, weight]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    with fast_products(CPU):
        found = functional.linear(x[:, ::2].transpose(1, 2), weight[:, 3:10].t()[:, :24])
    check(found, functional.linear(wide[0][:, ::2].transpose(1, 2), wide[1][:, 3:10].t()[:, :24]), inputs, wide)


def test_only_the_gradients_that_are_asked_for():
    x, weight, bias = torch.randn(5, 8), *leaves((3, 8), (3,))
    with fast_products(CPU):
        functional.linear(x, weight, bias).sum().backward()
        functional.linear(x.requires_grad_(), weight.detach(), bias.detach()).sum().backward()
    assert relative_error(weight.grad, x.detach().sum(0).expand(3, -1)) < 1e-6
    assert relative_error(bias.grad, torch.full((3,), 5.0)) < 1e-6
    assert relative_error(x.grad, weight.detach().sum(0).expand(5, -1)) < 1e-6


@pytest.mark.parametrize(("stride", "padding", "groups"), [(2, 0, 1), (1, 1, 1), (1, 0, 2)])
def test_other_convolutions_are_torchs(stride, padding, groups):
    x, weight = leaves((2, 8, 6, 6), (4, 8 // groups, 1, 1))
    x = x.contiguous(memory_format=torch.channels_last)
    with fast_products(CPU):
        found = functional.conv2d(x, weight, None, stride, padding, groups=groups)
    assert torch.equal(found, functional.conv2d(x, weight, None, stride, padding, groups=groups))
    assert not taken(found)


@pytest.mark.parametrize("inside", [True, False])
def test_what_is_recomputed_is_torchs(inside):
    """As the backward pass, which does it, leaves the block."""
    x, weight = leaves((5, 8), (3, 8))
    with fast_products(CPU):
        found = checkpoint(functional.linear, x, weight, use_reentrant=False).sum()
        if inside:
            found.backward()
    if not inside:
        found.backward()
    assert relative_error(weight.grad, x.detach().sum(0).expand(3, -1)) < 1e-6


def test_transformed_functions_are_torchs():
    x, weight = torch.randn(4, 5, 8), torch.randn(3, 8)
    with fast_products(CPU):
        found = torch.func.vmap(functional.linear, (0, None))(x, weight)
    assert torch.equal(found, torch.func.vmap(functional.linear, (0, None))(x, weight))


def test_gradients_of_gradients_are_refused():
    x, weight = leaves((5, 8), (3, 8))
    with fast_products(CPU):
        found = functional.linear(x, weight)
    (gradient,) = torch.autograd.grad(found.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_where_they_are_not_taken(monkeypatch):
    def takes(x, weight, **how):
        with fast_products(CPU, **how):
            return taken(functional.linear(x, weight))

    given = leaves((5, 8), (3, 8))
    assert takes(*given)
    assert not takes(*(x.double() for x in given))
    assert not takes(*given, compiled=True)
    with off(WAY):
        assert not takes(*given)
    with only("torch"):
        assert not takes(*given)
    with torch.autocast("cpu", torch.bfloat16):
        assert not takes(*given)
    monkeypatch.setattr(training, "_LEAST", 5 * 8 * 3 + 1)
    assert not takes(*given)
    with fast_products(torch.device("cuda")):
        assert not taken(functional.linear(*given))


def test_gradients_of_a_network():
    """As near to float64 as torch's own products."""
    torch.manual_seed(0)
    model = crispseg.create_model("crisp_nano", num_classes=3).train()
    wide = crispseg.create_model("crisp_nano", num_classes=3).double().train()
    wide.load_state_dict(model.state_dict())
    image = torch.randn(2, 3, 64, 64).contiguous(memory_format=torch.channels_last)

    def gradients(model, image, products):
        torch.manual_seed(1)  # the same paths are dropped
        with products:
            logits = model(image).logits
            loss = (logits * torch.linspace(-1, 1, logits.numel()).view(logits.shape)).mean()
            found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        return torch.cat([x.flatten() for x in found if x is not None]), logits

    truth, _ = gradients(wide, image.double(), off())
    plain, _ = gradients(model, image, off())
    found, logits = gradients(model, image, fast_products(CPU))
    assert taken(logits)
    assert relative_error(found, truth) < 2 * relative_error(plain, truth) + 1e-5
