"""Fused models on a CUDA device: kernels against formulas in float64, networks against the float64 model on the CPU."""

import importlib.util
import threading

import pytest
import torch
from torch.nn import functional

import crispseg
from crispseg.bench.check import NETWORK_BOUNDS
from crispseg.fused.layers import linear_gelu
from crispseg.ops.common.norm import Norm
from crispseg.ops.infer import matching, pixel_attention, token_attention
from crispseg.ops.maps import resizing
from tests.conftest import relative_error
from tests.fused.models import small_crisp, unsettled

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
HALVES = [torch.bfloat16, torch.float16]


def agree(function, tensors, *rest, bound=1e-2):
    """The kernel on the device against the formula in float64, from the same rounded tensors."""
    with torch.no_grad():
        takes = getattr(function, "takes", None)  # a function around an operator has none
        assert takes is None or takes(*tensors, *rest)
        found = function(*tensors, *rest)
        truth = function(*(x.double() for x in tensors), *rest)
    assert found.shape == truth.shape
    assert relative_error(found, truth) < bound


def attend(pixels, keys, added, values, bias, weight, shift):
    return pixel_attention.pixels_attend_tokens(pixels, keys, added, values, bias, Norm(weight, shift, 1e-5))


def draw(*shape, dtype):
    return torch.randn(*shape, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("length", [1, 63, 16384, 70001])
@pytest.mark.parametrize(
    ("batch", "tokens", "heads", "width"), [(1, 6, 8, 256), (3, 32, 8, 128), (2, 1, 4, 64), (1, 64, 8, 128)]
)
def test_attention(batch, tokens, heads, width, length, dtype):
    size = heads * width
    packed = draw(batch, tokens, 2 * size + heads + 8, dtype=dtype) / width**0.5
    keys, values, added, _ = packed.split([size, size, heads, 8], dim=-1)
    keys, values = keys.unflatten(-1, (heads, width)), values.unflatten(-1, (heads, width))
    pixels = draw(batch, length, width, dtype=dtype)
    norm = tuple(draw(3, width, dtype=dtype))
    projection = draw(heads, 16, width, dtype=dtype)
    agree(pixel_attention.read_pixels, (keys, pixels, projection))
    assert pixel_attention.pixels_attend_tokens.takes(pixels, keys)
    agree(attend, (pixels, keys, added, values, *norm))
    agree(pixel_attention.read_pixels, (1e2 * keys, pixels, projection))
    agree(attend, (pixels, 1e2 * keys, added, values, *norm))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("tokens", [1, 6, 32, 64])
def test_token_operations(tokens, dtype):
    for groups in (1, tokens):
        weight, bias = draw(groups, 256, 768, dtype=dtype), draw(groups, 768, dtype=dtype)
        for relu in (False, True):
            agree(matching.grouped_product, (draw(3, tokens, 256, dtype=dtype), weight, bias), relu)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("scale", [1, 1e3])
@pytest.mark.parametrize(
    ("batch", "tokens", "width"), [(1, 6, 256), (16, 6, 256), (3, 1, 64), (2, 19, 96), (5, 64, 128)]
)
def test_token_steps(batch, tokens, width, scale, dtype):
    def matrix(*shape):
        return draw(*shape, dtype=dtype) / shape[-1] ** 0.5

    inner, heads = width // 16, 8
    x, read = scale * draw(batch, tokens, width, dtype=dtype), scale * draw(batch, tokens, width // 2, dtype=dtype)
    joining = (matrix(width // 2, width), *draw(3, width, dtype=dtype))
    own = (matrix(3 * width, width), draw(3 * width, dtype=dtype))
    hidden = (
        matrix(8 * width, width),
        draw(8 * width, dtype=dtype),
        matrix(8 * width, width),
        draw(width, dtype=dtype),
    )
    vectors = (matrix(12, inner, width), draw(12, inner, dtype=dtype), matrix(12, inner, width))
    vectors = (*vectors, draw(12, inner, dtype=dtype))

    def join(weight, bias, gain, shift):
        return token_attention.Join(weight, bias, Norm(gain, shift, 1e-5))

    def perceptron(x, read, *weights):
        perceptron = token_attention.Perceptron(*weights[4:])
        return token_attention.join_perceptron(x, read, join(*weights[:4]), perceptron).sum(0)

    def settled(i):
        def run(x, gain, shift, *weights):
            own = token_attention.OwnAttention(*weights[4:], heads)
            parts = torch.stack([x, x.flip(0), 0.5 * x]).to(torch.promote_types(x.dtype, torch.float32))
            norm = Norm(gain, shift, 1e-5)
            return token_attention.settle(parts, norm, token_attention.Vectors(*weights[:4]), own)[i]

        return run

    def queries(i):
        def run(x, read, *weights):
            vectors = token_attention.Vectors(*weights[4:])
            return token_attention.join_vectors(x, read, join(*weights[:4]), vectors)[i]

        return run

    def hyper(x, read, *weights):
        return token_attention.join_grouped(x, read, join(*weights[:4]), *weights[4:], True)

    agree(perceptron, (x, read, *joining, *hidden))
    for i in range(4):
        agree(settled(i), (x, *joining[2:], *vectors, *own))
    agree(lambda x, *own: token_attention.attend_own(x, token_attention.OwnAttention(*own, heads)), (x / scale, *own))
    for i in range(2):
        agree(queries(i), (x, read, *joining, *vectors))
    for groups in (1, tokens):
        agree(hyper, (x, read, *joining, matrix(groups, width, 40), draw(groups, 40, dtype=dtype)))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("length", [1, 63, 16384])
@pytest.mark.parametrize(("classes", "count"), [(6, 3), (1, 1), (32, 5)])
def test_matching(classes, count, length, dtype):
    prototypes = draw(2, classes, count, 256, dtype=dtype)
    for scale in (1, 1e2):
        agree(matching.best_cosines, (scale * draw(2, length, 256, dtype=dtype), prototypes), 10.0)
    agree(matching.max_and_mean, (draw(2, length, 256, dtype=dtype) + 0.5,))
    weight, bank = draw(classes * count, 256, dtype=dtype).t() / 16, draw(classes, count, 128, dtype=dtype)
    agree(matching.mix_candidates, (draw(2, 256, dtype=dtype), weight, draw(classes * count, dtype=dtype), bank))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(("fine", "coarse"), [((128, 128), (64, 64)), ((1, 1), (1, 1)), ((75, 33), (38, 17))])
def test_maps(fine, coarse, dtype):
    finer, coarser = draw(2, *fine, 256, dtype=dtype), draw(2, *coarse, 256, dtype=dtype)
    agree(resizing.resize_add, (finer, coarser))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_products_gelu_is_within_rounding(dtype):
    rows, weight, bias = draw(4096, 64, dtype=dtype), draw(64, 264, dtype=dtype) / 8, draw(264, dtype=dtype)
    exact = functional.gelu(rows.double() @ weight.double() + bias.double())
    assert relative_error(linear_gelu(rows, weight, bias), exact) < 5e-3


def compare(model, images, dtypes):
    with torch.no_grad():
        truths = [model.double()(x.double()) for x in images]
    model.float().cuda()
    for name, dtype in dtypes:
        fused = model.fused(dtype)
        for _ in range(2):  # the second round replays what the first recorded
            for x, truth in zip(images, truths, strict=True):
                found = fused(x.cuda())
                assert found.dtype == torch.float32
                assert relative_error(found.cpu(), truth) < NETWORK_BOUNDS[name]
        assert all(recording is not None for recording in fused.graphs.recordings.values())


PRECISIONS = [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]


@pytest.mark.parametrize("name", ["crisp_nano", "crisp_tiny", "vssd_nano_upernet"])
def test_networks_with_alternating_shapes(name):
    model = crispseg.create_model(name, 6).eval()
    compare(model, [torch.randn(1, 3, 128, 128), torch.randn(2, 3, 75, 131), torch.randn(1, 3, 33, 64)], PRECISIONS)


@pytest.mark.parametrize(
    "options",
    [{"neck": "concat"}, {"fusion": "raw"}, {"dco": False}, {"last_stage": "attention"}, {"hyper": "shared"}],
    ids=str,
)
def test_options_and_a_single_pixel(options):
    compare(
        small_crisp(classes=9, bands=5, **options), [torch.randn(3, 5, 64, 96), torch.randn(1, 5, 1, 1)], PRECISIONS
    )


def test_float32_agrees_to_rounding():
    model, images = crispseg.create_model("crisp_nano", 6).eval(), torch.randn(1, 3, 160, 96)
    with torch.no_grad():
        truth = model.double()(images.double())
    assert relative_error(model.float().cuda().fused()(images.cuda()).cpu(), truth) < 1e-5


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="needs timm")
def test_a_peer():
    compare(unsettled(crispseg.create_model("unetformer_r18", 6)), [torch.randn(1, 3, 128, 96)] * 2, PRECISIONS)


def test_more_shapes_than_are_kept():
    model = small_crisp().cuda()
    fused = model.fused()
    images = [torch.randn(1, 3, 32 + i, 32, device="cuda") for i in range(10)]
    for _ in range(2):
        for x in images:
            with torch.no_grad():
                assert relative_error(fused(x), model(x)) < 1e-4
    assert len(fused.graphs.recordings) == fused.graphs.shapes


def test_outputs_belong_to_the_caller():
    fused = small_crisp().cuda().fused()
    first = fused(torch.randn(1, 3, 32, 32, device="cuda"))
    kept = first.clone()
    fused(torch.randn(1, 3, 32, 32, device="cuda"))
    assert torch.equal(first, kept)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("graphs", [True, False])
def test_a_model_on_another_than_the_current_device(graphs):
    model, image = small_crisp().to("cuda:1"), torch.randn(1, 3, 64, 64, device="cuda:1")
    with torch.no_grad():
        assert relative_error(model.fused(graphs=graphs)(image), model(image)) < 1e-4
    assert torch.cuda.current_device() == 0


def test_inference_mode_may_come_and_go():
    model, image = small_crisp().cuda(), torch.randn(1, 3, 32, 32, device="cuda")
    fused = model.fused()
    with torch.inference_mode():
        first = fused(image)
    assert torch.equal(fused(image), first)


def test_threads_with_streams_of_their_own():
    model = small_crisp().cuda()
    fused = model.fused()
    images = [torch.randn(1, 3, 32 + 8 * i, 64, device="cuda") for i in range(4)]
    with torch.no_grad():
        truths = [model(x) for x in images]
    torch.cuda.synchronize()
    errors = []

    def work(x, truth):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                errors.append(relative_error(fused(x), truth))

    threads = [threading.Thread(target=work, args=pair) for pair in zip(images, truths, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 80 and max(errors) < 1e-4
