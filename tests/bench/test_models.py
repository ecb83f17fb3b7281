import dataclasses
import functools

import pytest
import torch

import crispseg
from crispseg.bench import bench_models, environment, models, modes
from crispseg.bench.settings import choose
from crispseg.errors import UserError
from crispseg.models import registry
from crispseg.models.base import SegmentationModel
from crispseg.models.summary import summarize
from crispseg.ops.nc_ssd import formula
from tests.bench.conftest import TINY


def quiet(text):
    pass


def test_every_model_batch_precision_and_mode_has_its_cell(settings, monkeypatch):
    # the compiler's front end alone: generating code takes a minute
    monkeypatch.setattr(models, "compiled", functools.partial(torch.compile, backend="eager"))
    absent = registry.Entry(lambda **_: None, "", requires="no_such_package", extra="peers")
    broken = registry.Entry(lambda **_: 1 / 0, "", requires="", extra="")
    monkeypatch.setitem(registry._ENTRIES, "far_away", absent)
    monkeypatch.setitem(registry._ENTRIES, "broken", broken)
    kept = []
    several = dataclasses.replace(
        settings, batches=(2,), precisions=("fp32", "bf16"), modes=("eager", "compiled"), repeats=3
    )
    result = bench_models([TINY, "far_away", "broken"], several, quiet, kept.append)
    places = [(cell.model, cell.batch, cell.precision, cell.mode) for cell in result.cells]
    assert places == [(TINY, 2, precision, mode) for precision in ("fp32", "bf16") for mode in ("eager", "compiled")]
    assert {skipped.model: skipped.why for skipped in result.skipped} == {
        "far_away": "needs pip install 'crispseg[peers]'",
        "broken": "ZeroDivisionError: division by zero",
    }
    assert not result.wrong
    assert [len(part.cells) for part in kept] == [2, 4]
    for cell in result.cells:
        assert cell.status == "ok"
        assert cell.latency_ms.runs == 3
        assert cell.throughput == pytest.approx(1e3 * cell.batch / cell.latency_ms.median)
        assert cell.check_error <= cell.check_bound < cell.check_contrast


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_fused_model_is_checked_against_the_plain_one(settings, precision, monkeypatch):
    chosen = dataclasses.replace(settings, modes=("fused",), precisions=(precision,))
    (cell,) = bench_models([TINY], chosen, quiet).cells
    assert (cell.mode, cell.status) == ("fused", "ok")
    assert 0 < cell.check_error <= cell.check_bound
    original = SegmentationModel.fused
    monkeypatch.setattr(
        SegmentationModel, "fused", lambda self, *args, **kwargs: lambda x: 1.1 * original(self, *args, **kwargs)(x)
    )
    (cell,) = bench_models([TINY], chosen, quiet).cells
    assert (cell.status, cell.latency_ms) == ("wrong", None)


def test_counts_are_those_of_the_summary(settings):
    (cell,) = bench_models([TINY], dataclasses.replace(settings, batches=(2,)), quiet).cells
    (spec,) = models.specs.parse([TINY])
    summary = summarize(crispseg.create_model("crisp_nano", **spec.options), 32, 32, 2)
    assert (cell.macs * 2, cell.parameters) == (summary.macs, summary.parameters)
    assert cell.peak_source == "allocator"


def test_memory_on_a_cpu_is_what_is_allocated():
    x = torch.randn(2**20)  # 4 MiB; two more at a time below, the input counted
    assert modes.Plain(lambda x: ((x + 1) * 2,), (x,)).peak_bytes == pytest.approx(3 * 2**22, abs=100)
    assert modes.Plain(lambda x: (x + 1,), (x,)).peak_bytes == pytest.approx(2 * 2**22, abs=100)
    assert modes.Plain(lambda x: (sum((x + k).sum() for k in range(5)),), (x,)).peak_bytes < 2 * 2**22 + 1000


@pytest.mark.parametrize("half", ["weights", "autocast"])
def test_half_precision_by_weights_or_autocast(settings, half, monkeypatch):
    dtypes = set()
    original = torch.nn.Linear.forward

    def note(self, x):
        dtypes.add((self.weight.dtype, original(self, x).dtype))
        return original(self, x)

    monkeypatch.setattr(torch.nn.Linear, "forward", note)
    chosen = dataclasses.replace(settings, half=half, precisions=("bf16",), inputs=2)
    (cell,) = bench_models([TINY], chosen, quiet).cells
    assert cell.status == "ok"
    assert cell.check_error > 0
    weights = torch.bfloat16 if half == "weights" else torch.float32
    assert (weights, torch.bfloat16) in dtypes


def test_a_wrong_operator_refuses_models_that_use_it(settings, monkeypatch):
    right = formula.dispatched.formula
    monkeypatch.setattr(formula.dispatched, "formula", lambda *args: right(*args) * 1.01)
    result = bench_models([TINY], settings, quiet)
    (cell,) = result.cells
    assert (cell.status, cell.latency_ms) == ("wrong", None)
    assert "float64 reference" in cell.reason
    assert result.operator_check["fp32"] == pytest.approx(0.01, rel=0.01)


def test_the_check_is_against_float32_eager(settings, monkeypatch):
    """A model whose bf16 copy is spoilt is caught, although bf16 eager agrees with itself."""
    original = models.specs.in_precision

    def spoilt(model, precision, settings):
        copy = original(model, precision, settings)
        if precision != "fp32":
            with torch.no_grad():
                copy.head.log_scale += 0.1
        return copy

    monkeypatch.setattr(models.specs, "in_precision", spoilt)
    chosen = dataclasses.replace(settings, precisions=("fp32", "bf16"))
    plain, half = bench_models([TINY], chosen, quiet).cells
    assert plain.status == "ok"
    assert (half.status, half.latency_ms) == ("wrong", None)


def test_the_truth_of_an_image_too_large_for_memory_comes_in_bands(monkeypatch):
    model = crispseg.create_model("crisp_nano", width=8, depths=[1, 1, 1, 1]).eval()
    images = torch.randn(2, 3, 70, 45)
    with torch.no_grad():
        (whole,) = models._truth(model, images)
        monkeypatch.setattr(models, "_LARGEST_AT_ONCE", 1000)
        (in_bands,) = models._truth(model, images)
    torch.testing.assert_close(in_bands, whole, rtol=1e-4, atol=1e-4)


def test_switches_are_put_back(settings):
    def now():
        cudnn = torch.backends.cudnn
        return torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark, torch.get_num_threads()

    before = now()
    with environment.switches(dataclasses.replace(settings, threads=2)):
        assert now() == ("highest", False, True, 2)
    assert now() == before


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"modes": ["graph"]}, "needs|does not have"),
        ({"modes": ["egaer"]}, "did you mean 'eager'"),
        ({"precisions": ["bf15"]}, "did you mean 'bf16'"),
        ({"layout": "channels"}, "unknown layout"),
        ({"half": "amp"}, "unknown way to run in half precision"),
        ({"sizes": [512, 0]}, "--sizes must be at least 1"),
        ({"warmup": -1}, "--warmup cannot be negative"),
        ({"device": "tpu"}, "--device must be cpu or cuda"),
        ({"device": "meta"}, "--device must be cpu or cuda"),
    ],
)
def test_mistakes_in_settings(given, message):
    with pytest.raises(UserError, match=message):
        choose(**({"device": "cpu"} | given))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_cuda():
    with pytest.raises(UserError, match="no CUDA device"):
        choose("cuda")
