"""Linear layers, the MLP and BatchNorm on a CUDA device in half precision, against their formulas in float64."""

import pytest
import torch
from torch import nn

from crispseg.models.layers import ConvNorm
from crispseg.models.vssd import MLP
from crispseg.ops.train import batch_norm as norms
from crispseg.ops.train import mlp as layers
from crispseg.ops.train.mlp import linear, mlp
from tests.conftest import relative_error
from tests.ops.train import test_batch_norm as of_norms
from tests.ops.train import test_mlp as of_layers
from tests.ops.train.test_batch_norm import by_layer, make_map, make_norm
from tests.ops.train.test_mlp import linear_formula, linear_relu, make_layer, make_layers, mlp_formula, relu_formula

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

HALF = (torch.bfloat16, torch.float16)
# rows, width and hidden units: crisp_tiny's stages at batch 4, then odd ones
SIZES = [(65536, 64, 256), (16384, 128, 512), (4096, 256, 1024), (1024, 512, 2048), (1001, 48, 192), (1, 7, 30)]
# crisp_tiny's maps at batch 4, then odd ones
MAPS = [(4, 32, 256, 256), (4, 256, 128, 128), (4, 512, 16, 16), (3, 96, 33, 47), (1, 5, 1, 301), (7, 130, 1, 1)]


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    monkeypatch.delenv("CRISPSEG_OPS_BACKEND", raising=False)


def forbidden(*args, **kwargs):
    raise AssertionError("torch's way was taken, or the kernels'")


def under_autocast(function, dtype):
    def cast(*args):
        with torch.autocast("cuda", dtype):
            return function(*args)

    return cast


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("kind", [*HALF, torch.float32], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_under_autocast(monkeypatch, dtype, kind, sizes):
    monkeypatch.setattr(layers.functional, "linear", forbidden)
    rows, width, hidden = sizes
    x = torch.randn(1, rows, width, device="cuda").to(kind)
    of_layers.check(under_autocast(mlp, dtype), mlp_formula, x, make_layers(width, hidden, width, device="cuda"), dtype)
    layer = make_layer(width, hidden, device="cuda")
    of_layers.check(under_autocast(linear, dtype), linear_formula, x, layer, dtype)
    of_layers.check(under_autocast(linear_relu, dtype), relu_formula, x, layer, dtype, kink=linear_formula)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_scaled_inputs_and_half_precision_parameters(scale):
    x = scale * torch.randn(5, 333, 64, device="cuda")
    parameters = make_layers(64, 256, 64, torch.bfloat16, "cuda")
    of_layers.check(mlp, mlp_formula, x.bfloat16(), parameters)


@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("shape", MAPS, ids=str)
@pytest.mark.parametrize("relu", [False, True])
def test_batch_norm(scale, dtype, shape, relu):
    x, norm = make_map(shape, dtype, scale, offset=1.0, device="cuda"), make_norm(shape[1], "cuda")
    assert norms.batch_norm.takes(x)
    of_norms.check(by_layer, norm, x, relu)


def test_the_same_bits_every_time():
    x, norm = make_map((4, 64, 65, 63), torch.bfloat16, device="cuda").requires_grad_(), make_norm(64, "cuda")
    parameters = [v.requires_grad_() for v in make_layers(64, 256, 64, device="cuda")]

    def run():
        y = mlp(norm(x, relu=True).permute(0, 2, 3, 1), *parameters)
        return torch.autograd.grad(y.float().square().sum(), [x, norm.weight, norm.bias, *parameters])

    for first, second in zip(run(), run(), strict=True):
        assert torch.equal(first, second)


def test_other_maps_take_torchs_way(monkeypatch):
    monkeypatch.setattr(norms, "_normalise", forbidden)
    norm = make_norm(8, "cuda")
    for x in (
        torch.randn(2, 8, 5, 5, device="cuda").bfloat16(),
        make_map((2, 8, 5, 5), device="cuda"),
        make_map((1, 8, 1, 1), torch.bfloat16, device="cuda"),
    ):
        assert norm(x).dtype == x.dtype
    x = make_map((2, 8, 5, 5), torch.bfloat16, device="cuda")
    norm.eval()(x)
    monkeypatch.setenv("CRISPSEG_OPS_BACKEND", "torch")
    norm.train()(x)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.Sequential(ConvNorm(8, 32, 3), ConvNorm(32, 64, 1, bias=True, norm=False))
        self.mlp = MLP(64, 4)

    def forward(self, x):
        return self.mlp(self.convs(x).permute(0, 2, 3, 1))


@pytest.mark.parametrize("how", ["eager", "compiled", "shared statistics"])
def test_a_training_step_with_and_without_kernels(monkeypatch, how):
    images = torch.randn(2, 8, 24, 40, device="cuda").to(memory_format=torch.channels_last)
    start = Small().state_dict()

    def step():
        model = Small().cuda().to(memory_format=torch.channels_last)
        model.load_state_dict(start)
        if how == "shared statistics":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        run = torch.compile(model, fullgraph=True) if how == "compiled" else model
        with torch.autocast("cuda", torch.bfloat16):
            y = run(images)
        y.float().square().mean().backward()
        buffers = [b.flatten().float() for b in model.buffers()]
        return y, torch.cat([p.grad.flatten() for p in model.parameters()]), torch.cat(buffers)

    torch.compiler.reset()
    found = step()
    monkeypatch.setenv("CRISPSEG_OPS_BACKEND", "torch")
    torch.compiler.reset()
    for f, expected in zip(found, step(), strict=True):
        assert relative_error(f, expected) < 2e-2


def test_captured_graph_replays():
    x, norm = make_map((2, 64, 32, 32), torch.bfloat16, device="cuda"), make_norm(64, "cuda")
    layer = MLP(64, 4).cuda()

    def run():
        with torch.autocast("cuda", torch.bfloat16):
            y = layer(norm(x, relu=True).permute(0, 2, 3, 1))
        return y, *torch.autograd.grad(y.float().square().sum(), [norm.weight, layer.fc1.weight, layer.fc1.bias])

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    x.copy_(torch.randn_like(x))
    batches = norm.num_batches_tracked.item()
    graph.replay()
    assert norm.num_batches_tracked == batches + 1
    for f, expected in zip(captured, run(), strict=True):
        assert torch.equal(f, expected)
