"""The head's kernels through Triton's interpreter, against the formulas in float64; run by
`tests/ops/test_interpreted.py`."""

import pytest
import torch

from crispseg.ops.common.norm import Norm
from crispseg.ops.infer import matching, matching_kernels, pixel_attention, token_attention
from crispseg.ops.infer import pixel_attention_kernels as attend_kernels
from crispseg.ops.infer import token_attention_kernels as attend_tokens_kernels
from crispseg.ops.maps import resizing, resizing_kernels
from tests.conftest import relative_error

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
DTYPES = list(BOUNDS)
PRODUCTS = [torch.float32, torch.float16]  # the interpreter multiplies bfloat16 matrices as if they were integers


def agree(kernel, formula, tensors, *rest):
    """The kernel in the tensors' precision, the formula in float64."""
    truth = formula(*(x.double() for x in tensors), *rest)
    found = kernel(*tensors, *rest)
    assert found.shape == truth.shape
    assert relative_error(found, truth) < BOUNDS[tensors[0].dtype]


def agree_attending(tensors):
    """Of pixels that attend tokens; the last tensors are the norm's."""
    functions = (attend_kernels.pixels_attend_tokens, pixel_attention.pixels_attend_tokens)
    agree(*(lambda *x, f=f: f(*x[:5], Norm(*x[5:], 1e-5)) for f in functions), tensors)


def drawn(dtype, *shape):
    return torch.randn(*shape).to(dtype)


def join_of(inner, width, dtype):
    norm = Norm(*drawn(dtype, 2, width), 1e-5)
    return token_attention.Join(drawn(dtype, inner, width) / inner**0.5, drawn(dtype, width), norm)


def vectors_of(groups, inner, width, dtype):
    matrices = drawn(dtype, 2, groups, inner, width) / width**0.5
    bias, score = drawn(dtype, 2, groups, inner)
    return token_attention.Vectors(matrices[0], bias, matrices[1], score)


def own_of(heads, width, dtype):
    return token_attention.OwnAttention(drawn(dtype, 3 * width, width) / width**0.5, drawn(dtype, 3 * width), heads)


def doubled(value):
    """Tensors in float64, also those within tuples of tuples."""
    if isinstance(value, torch.Tensor):
        return value.double()
    return type(value)(*map(doubled, value)) if isinstance(value, tuple) else value


def agree_all(kernel, formula, *arguments, total=None):
    """`agree` for functions of tuples, and with several results."""
    found, truth = kernel(*arguments), formula(*map(doubled, arguments))
    if total is not None:
        found, truth = total(found), total(truth)
    found, truth = ((x,) if isinstance(x, torch.Tensor) else x for x in (found, truth))
    assert len(found) == len(truth)
    for one, other in zip(found, truth, strict=True):
        assert one.shape == other.shape
        assert one.numel() == 0 or relative_error(one, other) < BOUNDS[arguments[0].dtype]


TOKENS = [(1, 6, 16, 32), (5, 6, 24, 24), (2, 19, 70, 16), (3, 1, 16, 48)]  # batch, tokens, read, width


@pytest.mark.parametrize("dtype", PRODUCTS, ids=str)
@pytest.mark.parametrize(("batch", "tokens", "inner", "width"), TOKENS)
def test_join_perceptron(batch, tokens, inner, width, dtype):
    hidden = 200
    first, second = drawn(dtype, 2, hidden, width) / width**0.5
    perceptron = token_attention.Perceptron(first, drawn(dtype, hidden), second, drawn(dtype, width))
    x, read = drawn(dtype, batch, tokens, width), drawn(dtype, batch, tokens, inner)
    functions = (attend_tokens_kernels.join_perceptron, token_attention.join_perceptron)
    agree_all(*functions, x, read, join_of(inner, width, dtype), perceptron, total=lambda parts: parts.sum(0))


@pytest.mark.parametrize("dtype", PRODUCTS, ids=str)
@pytest.mark.parametrize(("batch", "tokens", "inner", "width"), TOKENS)
@pytest.mark.parametrize("attending", [False, True])
def test_settle(batch, tokens, inner, width, attending, dtype):
    own = own_of(2, width, dtype) if attending else None
    norm = Norm(*drawn(dtype, 2, width), 1e-5)
    parts, vectors = torch.randn(3, batch, tokens, width), vectors_of(3, 5, width, dtype)
    truth = token_attention.settle(*map(doubled, (parts, norm, vectors, own)))
    found = attend_tokens_kernels.settle(parts, norm, vectors, own)
    for one, other in zip(found, truth, strict=True):
        assert one.shape == other.shape
        assert one.numel() == 0 or relative_error(one, other) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", PRODUCTS, ids=str)
@pytest.mark.parametrize(("batch", "tokens", "inner", "width"), TOKENS)
def test_attend_own(batch, tokens, inner, width, dtype):
    x = drawn(dtype, batch, tokens, width)
    agree_all(attend_tokens_kernels.attend_own, token_attention.attend_own, x, own_of(4, width, dtype))


@pytest.mark.parametrize("dtype", PRODUCTS, ids=str)
@pytest.mark.parametrize(("batch", "tokens", "inner", "width"), TOKENS)
def test_join_vectors(batch, tokens, inner, width, dtype):
    x, read = drawn(dtype, batch, tokens, width), drawn(dtype, batch, tokens, inner)
    join, vectors = join_of(inner, width, dtype), vectors_of(2, 16, width, dtype)
    agree_all(attend_tokens_kernels.join_vectors, token_attention.join_vectors, x, read, join, vectors)


@pytest.mark.parametrize("dtype", PRODUCTS, ids=str)
@pytest.mark.parametrize(("batch", "tokens", "inner", "width"), TOKENS)
@pytest.mark.parametrize("shared", [False, True])
def test_join_grouped(batch, tokens, inner, width, shared, dtype):
    x, read = drawn(dtype, batch, tokens, width), drawn(dtype, batch, tokens, inner)
    groups = 1 if shared else tokens
    weight, bias = drawn(dtype, groups, width, 40) / width**0.5, drawn(dtype, groups, 40)
    functions = (attend_tokens_kernels.join_grouped, token_attention.join_grouped)
    agree_all(*functions, x, read, join_of(inner, width, dtype), weight, bias, True)


@pytest.mark.parametrize("dtype", PRODUCTS, ids=str)
@pytest.mark.parametrize(
    ("batch", "tokens", "heads", "width", "length"),
    [(1, 6, 8, 32, 150), (2, 3, 2, 20, 1), (1, 32, 3, 16, 70), (3, 1, 1, 16, 65)],
)
def test_read_pixels(batch, tokens, heads, width, length, dtype):
    queries = torch.randn(batch, tokens, heads * width + 8)[..., 8:].unflatten(-1, (heads, width)).to(dtype)
    pixels = torch.randn(batch, length, width).to(dtype)
    projection = torch.randn(heads, 7, width).to(dtype)
    agree(attend_kernels.read_pixels, pixel_attention.read_pixels, (queries, pixels, projection))


@pytest.mark.parametrize("dtype", PRODUCTS, ids=str)
@pytest.mark.parametrize(
    ("batch", "tokens", "heads", "width", "length"),
    [(1, 6, 8, 32, 100), (2, 3, 2, 20, 1), (1, 32, 3, 16, 17), (3, 1, 1, 16, 65), (1, 5, 6, 48, 70)],
)
def test_pixels_attend_tokens(batch, tokens, heads, width, length, dtype):
    size = heads * width
    packed = torch.randn(batch, tokens, 2 * size + heads + 3).to(dtype)
    keys, values, added, _ = packed.split([size, size, heads, 3], dim=-1)
    keys, values = keys.unflatten(-1, (heads, width)) / width**0.5, values.unflatten(-1, (heads, width))
    pixels = torch.randn(batch, length, width).to(dtype)
    bias, weight, shift = torch.randn(3, width).to(dtype)
    tensors = (pixels, keys, added, values, bias, weight, shift)
    agree_attending(tensors)


def test_attention_with_scores_far_apart():
    """Every pixel has one token and every token one pixel that wins by hundreds."""
    queries, pixels = 100 * torch.randn(1, 4, 2, 16), torch.randn(1, 90, 16)
    agree(attend_kernels.read_pixels, pixel_attention.read_pixels, (queries, pixels, torch.randn(2, 4, 16)))
    keys, added, values = 100 * torch.randn(1, 4, 2, 16), 500 * torch.randn(1, 4, 2), torch.randn(1, 4, 2, 16)
    norm = (torch.randn(16), torch.randn(16), torch.randn(16))
    tensors = (pixels, keys, added, values, *norm)
    agree_attending(tensors)


@pytest.mark.parametrize("dtype", PRODUCTS, ids=str)
@pytest.mark.parametrize(
    ("batch", "classes", "count", "width", "length"),
    [(1, 6, 3, 32, 100), (2, 1, 1, 20, 1), (1, 32, 5, 16, 33), (3, 7, 2, 16, 65)],
)
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_best_cosines(batch, classes, count, width, length, scale, dtype):
    descriptors = (scale * torch.randn(batch, length, width)).to(dtype)
    prototypes = (scale * torch.randn(batch, classes, count, width)).to(dtype)
    agree(matching_kernels.best_cosines, matching.best_cosines, (descriptors, prototypes), 10.0)


@pytest.mark.parametrize("dtype", PRODUCTS, ids=str)
@pytest.mark.parametrize(
    ("batch", "classes", "groups", "inner", "outer"), [(1, 6, 6, 40, 50), (3, 5, 1, 16, 33), (20, 2, 2, 70, 8)]
)
@pytest.mark.parametrize("relu", [False, True])
def test_grouped_product(batch, classes, groups, inner, outer, relu, dtype):
    x, weight = torch.randn(batch, classes, inner), torch.randn(groups, inner, outer)
    tensors = [t.to(dtype) for t in (x, weight, torch.randn(groups, outer))]
    agree(matching_kernels.grouped_product, matching.grouped_product, tensors, relu)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("shape", [(1, 6, 4, 32, 16), (3, 1, 1, 5, 7), (2, 19, 5, 70, 48)])
def test_mix_candidates(shape, scale, dtype):
    batch, classes, count, inner, width = shape
    bank, bias = drawn(dtype, classes, count, width), drawn(dtype, classes * count)
    weight = (scale * torch.randn(classes * count, inner) / inner**0.5).to(dtype).t()
    tensors = (drawn(dtype, batch, inner), weight, bias, bank)
    agree(matching_kernels.mix_candidates, matching.mix_candidates, tensors)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 8), (2, 300, 40), (3, 7, 18)])
def test_max_and_mean(shape, dtype):
    agree(matching_kernels.max_and_mean, matching.max_and_mean, (torch.randn(shape).to(dtype) + 0.5,))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("fine", "coarse"), [((16, 16), (8, 8)), ((1, 1), (1, 1)), ((5, 33), (3, 17)), ((9, 1), (5, 1)), ((7, 12), (2, 3))]
)
def test_resize_add(fine, coarse, dtype):
    finer, coarser = torch.randn(2, *fine, 20).to(dtype), torch.randn(2, *coarse, 20).to(dtype)
    agree(resizing_kernels.resize_add, resizing.resize_add, (finer, coarser))
