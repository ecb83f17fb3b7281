"""Fused models on a CPU against the same in float64, and what weights laid out for oneDNN must survive."""

import copy
import io
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from crispseg.fused.convolutions import FusedConvolution
from crispseg.fused.onednn_mixer import _by_halves
from crispseg.ops import Gates, Rule, ncssd, only
from crispseg.ops.cpu import attention_in_parts, onednn, winograd
from crispseg.ops.dispatch import off, why_not_on_a_cpu
from crispseg.ops.nc_ssd.formula import queries_of, read_queries, sums_of
from tests.conftest import relative_error
from tests.fused.models import small_crisp

pytestmark = pytest.mark.skipif(why_not_on_a_cpu("onednn") is not None, reason="needs torch with oneDNN")


@pytest.fixture
def small_parts(monkeypatch):
    """Parts and tiles as small as they get."""
    monkeypatch.setattr(attention_in_parts, "_NUMBERS", 1)
    monkeypatch.setattr(winograd, "_TILES", 1)
    monkeypatch.setattr(winograd, "LEAST_CHANNELS", 8)


@pytest.mark.parametrize(
    "options", [{}, {"fusion": "raw"}, {"dco": {"residual_readout": "unnormalized"}}, {"neck": "concat"}]
)
@pytest.mark.parametrize("shape", [(1, 3, 70, 90), (3, 3, 37, 53)])
def test_a_model_in_the_smallest_parts(small_parts, options, shape):
    model, images = small_crisp(**options), torch.randn(shape)
    with torch.no_grad():
        truth = copy.deepcopy(model).double()(images.double())
    fused = model.fused()
    assert relative_error(fused(images), truth) < 1e-5
    with only("torch"):
        assert relative_error(fused(images), truth) < 1e-5


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fusion": "raw"},
        {"fusion": "selective"},
        {"dco": {"residual_readout": "unnormalized", "skip": "before"}},
        {"dco": False, "neck": "concat"},
        {"last_stage": "attention"},
    ],
)
@pytest.mark.parametrize("shape", [(1, 3, 70, 90), (3, 3, 37, 53)])
def test_half_precision_is_no_worse_than_the_model_cast(monkeypatch, small_parts, options, shape):
    """oneDNN's way is taken on every processor here: where there are no instructions for it, it is imitated."""
    monkeypatch.setattr(onednn, "multiplies_bfloat16", lambda device: True)
    model, images = small_crisp(**options), torch.randn(shape)
    with torch.no_grad():
        truth = copy.deepcopy(model).double()(images.double())
        cast = relative_error(copy.deepcopy(model).bfloat16()(images.bfloat16()), truth)
    taken = []
    monkeypatch.setattr(onednn, "linear", _noting(taken, "linear", onednn.linear))
    found = model.fused(torch.bfloat16)(images)
    assert taken and found.dtype == torch.float32
    assert relative_error(found, truth) < max(1.5 * cast, 1e-2)


def test_without_instructions_for_half_precision_formulas_take_over(monkeypatch):
    monkeypatch.setattr(onednn, "multiplies_bfloat16", lambda device: False)
    model, images = small_crisp(), torch.randn(1, 3, 70, 90)
    taken = []
    monkeypatch.setattr(onednn, "linear", _noting(taken, "linear", onednn.linear))
    found = model.fused(torch.bfloat16)(images)
    assert not taken
    assert relative_error(found, model.fused()(images)) < 5e-2


@pytest.mark.parametrize("tokens", [1, 7, 10])
@pytest.mark.parametrize(
    "rule", [Rule(), Rule(skip="before"), Rule(residual_readout="unnormalized", skip="before"), Rule(fusion="raw")]
)
@torch.no_grad()
def test_the_operator_by_halves(rule, tokens):
    v, (b, c) = torch.randn(2, tokens, 3, 4), torch.randn(2, 2, tokens, 5)
    rho, d = torch.rand(2, tokens, 3), torch.randn(3)
    gates = Gates(torch.rand(3), torch.randn(3), torch.randn(4), torch.randn(4))
    state = _by_halves(v, b, rho, gates, rule)
    queries = queries_of(c, state, rule)
    found = read_queries(v, queries, d, state, sums_of(queries, state), gates, rule)
    wide = (x.double() for x in (v, b, c, rho, d))
    truth = ncssd(*wide, Gates(*(gate.double() for gate in gates)), rule, backend="reference")
    assert relative_error(found, truth) < 1e-5


def test_copies_pickles_and_other_precisions_after_a_run():
    images = torch.randn(1, 3, 40, 56)
    fused = small_crisp().fused(graphs=False)
    truth = fused(images)
    assert torch.equal(copy.deepcopy(fused)(images), truth)
    assert torch.equal(pickle.loads(pickle.dumps(fused))(images), truth)
    file = io.BytesIO()
    torch.save(fused, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(images), truth)
    assert relative_error(copy.deepcopy(fused).double()(images), truth) < 1e-5
    assert torch.equal(fused(images), truth)


def test_first_calls_from_several_threads_and_then_without_onednn():
    model, images = small_crisp(), torch.randn(4, 1, 3, 40, 56)
    with torch.no_grad():
        truths = [copy.deepcopy(model).double()(image.double()) for image in images]
    fused = model.fused()
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(fused, images))
    with torch.backends.mkldnn.flags(enabled=False):
        results += [fused(image) for image in images]
    for found, truth in zip(results, 2 * truths, strict=True):
        assert relative_error(found, truth) < 1e-5


def test_exported_after_a_run():
    images = torch.randn(1, 3, 40, 56)
    fused = small_crisp().fused()
    truth = fused(images)
    program = torch.export.export(fused, (images,))
    assert not any("mkldnn" in str(node.target) for node in program.graph.nodes)
    assert relative_error(program.module()(images), truth) < 1e-5


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 3, "padding": 2, "dilation": 2},
        {"kernel_size": 2, "stride": 2},
    ],
)
@torch.no_grad()
def test_convolutions_of_any_model(options):
    conv, x = nn.Conv2d(128, 128, **options), torch.randn(2, 128, 9, 12)
    truth = copy.deepcopy(conv).double()(x.double())
    fused = FusedConvolution(conv)
    assert relative_error(fused(x), truth) < 1e-5
    assert (fused._ready is None) == (fused.dilation == (2, 2))
    assert relative_error(FusedConvolution(conv).double()(x.double()), truth) < 1e-12


@pytest.mark.parametrize("way", ["onednn", "winograd", "attention_in_parts"])
def test_a_way_that_is_switched_off_is_not_taken(way, monkeypatch):
    """The network gives the same without it."""
    monkeypatch.setattr(winograd, "LEAST_CHANNELS", 1)
    taken = []
    for module, name in ((attention_in_parts, "split"), (winograd.Winograd, "framed"), (onednn, "linear")):
        monkeypatch.setattr(module, name, _noting(taken, name, getattr(module, name)))
    model, images = small_crisp().eval(), torch.randn(1, 3, 64, 64)
    names = {"onednn": {"split", "framed", "linear"}, "winograd": {"framed"}, "attention_in_parts": {"split"}}[way]
    with torch.no_grad():
        whole = model.fused()(images)
        assert names <= set(taken)
        taken.clear()
        with off(way):
            found = model.fused()(images)
    assert not names & set(taken)
    assert relative_error(found, whole) < 1e-5


def _noting(taken, name, function):
    def noted(*args, **options):
        taken.append(name)
        return function(*args, **options)

    return noted
