"""The head's kernels with gradients on a CUDA device, against float64, and in the head's own training step."""

import copy

import pytest
import torch

from crispseg.models.omp import OMPConfig, OMPHead
from crispseg.ops.dispatch import only
from crispseg.ops.maps import resizing
from crispseg.ops.train import cross_attention
from crispseg.ops.train import matching as cosines
from tests.conftest import relative_error
from tests.ops.maps.test_maps import resized
from tests.ops.train.test_cross_attention import head_by_head
from tests.ops.train.test_matching import best_of, smooth_best_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    monkeypatch.delenv("CRISPSEG_OPS_BACKEND", raising=False)


def draw(*shape, dtype=torch.bfloat16, scale=1.0):
    return (scale * torch.randn(shape, device="cuda")).to(dtype)


def agree(function, formula, tensors, bound=1e-2):
    """Results and gradients, in the tensors' precision and in float64."""
    exact = [x.detach().double().requires_grad_() for x in tensors]
    given = [x.detach().requires_grad_() for x in tensors]
    found, truth = function(*given), formula(*exact)
    assert found.shape == truth.shape
    assert relative_error(found, truth) < bound
    g = torch.randn_like(truth).to(found.dtype)
    truth.backward(g.double())
    found.backward(g)
    for x, true in zip(given, exact, strict=True):
        assert x.grad.dtype == x.dtype
        assert (x.grad - true.grad).norm() < bound * true.grad.norm() + 1e-5


def attend(heads):
    def function(q, k, v):
        kv = torch.cat([k, v], -1)
        assert cross_attention.cross_attention.takes(q, kv, heads)
        return cross_attention.cross_attention(q, kv, heads)

    return function


# crisp_tiny's at 512 px, crisp_nano's, then odd ones: pixels, tokens, heads, channels of a head
SIZES = [
    (16384, 6, 8, 16),
    (4096, 7, 8, 8),
    (6, 6, 8, 32),
    (1001, 20, 4, 12),
    (333, 64, 3, 64),
    (70, 1, 1, 4),
    (1, 5, 8, 32),
]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("few", ["keys", "queries"])
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_attention(size, few, scale):
    pixels, tokens, heads, width = size
    many, some = draw(2, 2, pixels, heads * width, scale=scale), draw(2, 2, tokens, heads * width)
    agree(attend(heads), head_by_head(heads), (many[0], *some) if few == "keys" else (some[0], *many))


@pytest.mark.parametrize(
    "size",
    [(16384, 6, 3, 256), (4096, 6, 3, 128), (1, 1, 1, 4), (1001, 20, 3, 24), (77, 40, 1, 64), (300, 2, 20, 200)],
    ids=str,
)
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_best_cosines(size, scale):
    pixels, classes, count, width = size
    x = draw(2, width, pixels, 1, scale=scale)
    prototypes = torch.nn.functional.normalize(torch.randn(2, classes, count, width, device="cuda"), dim=-1)
    assert cosines.best_match.takes(x, prototypes)
    agree(
        lambda x, p: cosines.best_match(x, p)[0].flatten(2),
        lambda x, p: best_of(x.flatten(2).transpose(1, 2), p),
        (x, prototypes),
    )


@pytest.mark.parametrize(
    "size",
    [(16384, 6, 3, 256), (4096, 17, 5, 128), (1, 1, 1, 4), (1001, 2, 3, 64), (77, 40, 1, 64), (300, 2, 20, 200)],
    ids=str,
)
@pytest.mark.parametrize("sharpness", [0.5, 10.0, 1e3])
def test_smooth_best_cosines(size, sharpness):
    pixels, classes, count, width = size
    x = draw(2, width, pixels, 1, scale=30.0)
    prototypes = torch.nn.functional.normalize(torch.randn(2, classes, count, width, device="cuda"), dim=-1)
    sharpness = torch.tensor(sharpness, device="cuda", requires_grad=True)
    assert cosines.soft_match.takes(x, prototypes, sharpness)
    agree(
        lambda x, p: cosines.soft_match(x, p, sharpness.detach()).flatten(2),
        lambda x, p: smooth_best_of(x.flatten(2).transpose(1, 2), p, sharpness.detach().double()),
        (x, prototypes),
    )
    cosines.soft_match(x, prototypes, sharpness).sum().backward()  # no terms that cancel
    exact = sharpness.detach().double().requires_grad_()
    smooth_best_of(x.double().flatten(2).transpose(1, 2), prototypes.double(), exact).sum().backward()
    assert (sharpness.grad - exact.grad).abs() <= 1e-3 * exact.grad.abs()


def test_one_prototype_is_hard_matching():
    x, prototypes = draw(2, 64, 333, 1), torch.randn(2, 6, 1, 64, device="cuda")
    sharpness, found = torch.tensor(7.0, device="cuda"), []
    for function in (lambda x, p: cosines.best_match(x, p)[0], lambda x, p: cosines.soft_match(x, p, sharpness)):
        given = [x.clone().requires_grad_(), prototypes.clone().requires_grad_()]
        values = function(*given)
        found.append((values, *torch.autograd.grad(values.square().sum(), given)))
    for hard, soft in zip(*found, strict=True):
        torch.testing.assert_close(hard, soft)


MAPS = [((64, 64), (128, 128)), ((17, 33), (33, 65)), ((1, 1), (5, 3)), ((16, 16), (128, 128)), ((9, 7), (4, 3))]


def in_planes(size):
    return lambda x: resized(x.permute(0, 2, 3, 1), size).permute(0, 3, 1, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(("low", "size"), MAPS)
def test_resized_maps(low, size, layout, dtype):
    x, finer = (draw(2, 136, *shape, dtype=dtype).contiguous(memory_format=layout) for shape in (low, size))
    assert resizing.add_resized.takes(finer, x)
    agree(resizing.add_resized, lambda y, x: in_planes(size)(x) + y, (finer, x))


@pytest.mark.parametrize(("neck", "matching"), [("topdown", "max"), ("concat", "max"), ("topdown", "lse")])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_head_with_and_without_kernels(neck, matching, compiled):
    widths = (32, 64, 96, 128)
    head = OMPHead(widths, 5, OMPConfig(dim=128, mlp_dim=256, neck=neck, matching=matching)).cuda().train()
    features = [
        torch.randn(2, w, 96 // s, 128 // s, device="cuda").contiguous(memory_format=torch.channels_last)
        for w, s in zip(widths, (4, 8, 16, 32), strict=True)
    ]
    weights = torch.randn(5, device="cuda")[:, None, None]

    def step():
        torch.compiler.reset()
        trained = copy.deepcopy(head)
        run = torch.compile(trained, fullgraph=True) if compiled else trained
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = run(features).logits
        assert logits.dtype == torch.float32
        (logits * weights).mean().backward()
        return logits.detach(), torch.cat([p.grad.flatten() for p in trained.parameters()])

    logits, gradients = step()
    with only("torch"):
        plain_logits, plain_gradients = step()
    assert relative_error(logits, plain_logits) < 0.05
    assert relative_error(gradients, plain_gradients) < 0.1


def test_captured_graph_replays():
    q, kv = draw(2, 500, 64).requires_grad_(), draw(2, 6, 128).requires_grad_()

    def step():
        return torch.autograd.grad(cross_attention.cross_attention(q, kv, 4).float().square().sum(), (q, kv))

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    with torch.no_grad():
        q.copy_(torch.randn_like(q))
    graph.replay()
    assert all(map(torch.equal, found, step()))


def test_captured_soft_matching_reads_its_sharpness_when_replayed():
    x, prototypes = draw(2, 64, 300, 1).requires_grad_(), torch.randn(2, 6, 3, 64, device="cuda", requires_grad=True)
    log_scale = torch.tensor(2.0, device="cuda", requires_grad=True)
    softness = torch.tensor(1.0, device="cuda")

    def step():
        logits = log_scale.exp() * cosines.soft_match(x, prototypes, log_scale.exp() / softness)
        return logits.detach().clone(), *torch.autograd.grad(logits.square().sum(), (x, prototypes, log_scale))

    before = step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    softness.fill_(0.1)
    graph.replay()
    assert all(map(torch.equal, found, step()))
    assert not torch.equal(found[0], before[0])
