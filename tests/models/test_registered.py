"""What every registered model can do. The small ones run; the large ones are built and counted without data."""

import copy
import math

import pytest
import torch

import crispseg
from crispseg.errors import UserError
from crispseg.losses import LossConfig, segmentation_loss
from crispseg.models.base import ModelInfo, Output
from crispseg.models.summary import summarize
from crispseg.ops.cpu import onednn
from tests.conftest import relative_error
from tests.models import test_registered_gpu
from tests.models.registered import PRECISIONS, check_evaluation, two_steps

SHRINK = {"width": 8, "depths": (1, 1, 1, 1), "heads": (1, 1, 2, 2), "state": 4}
SHRINK_CRISP = SHRINK | {"dim": 16, "attention_heads": 2, "mlp_dim": 16}
SHRINK_UPER = SHRINK | {"channels": 16, "aux_channels": 8}

OURS = [*crispseg.list_models("crisp*"), *crispseg.list_models("vssd*")]
# every name once shrunk to seconds, plus the options that change the computation
CASES = {name: (name, SHRINK_CRISP if name.startswith("crisp") else SHRINK_UPER) for name in OURS}
CASES |= {
    "concat": ("crisp_nano", SHRINK_CRISP | {"neck": "concat"}),
    "attention": ("crisp_nano", SHRINK_CRISP | {"last_stage": "attention"}),
    "raw": ("crisp_nano", SHRINK_CRISP | {"fusion": "raw"}),
    "unnormalized": ("crisp_nano", SHRINK_CRISP | {"dco": {"residual_readout": "unnormalized", "skip": "before"}}),
    "selective": ("crisp_nano", SHRINK_CRISP | {"fusion": "selective"}),
    "soft and centred": ("crisp_nano", SHRINK_CRISP | {"matching": "lse", "centred": True}),
    "crisp_nano as it is": ("crisp_nano", {}),
}
# compiling takes seconds per layer, so the tests that do it take one of each kind of computation, shrunk
KINDS = ["crisp_nano", "concat", "attention", "raw", "unnormalized", "vssd_nano_upernet"]


def make(case, classes=3, bands=4):
    name, options = CASES[case]
    return crispseg.create_model(name, num_classes=classes, in_channels=bands, **options)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [(1, 1), (5, 130), (33, 47)])
def test_forward_backward_any_size(case, size):
    model = make(case)
    images, target = torch.randn(1, 4, *size), torch.randint(0, 3, (1, *size))
    output = model.train()(images)
    assert isinstance(output, Output)
    loss = segmentation_loss(output, target, LossConfig(dice=1.0))["total"]
    loss.backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None]
    assert not missing
    assert all(p.grad.isfinite().all() for p in model.parameters())
    with torch.no_grad():
        logits = model.eval()(torch.randn(2, 4, *size))
    assert logits.shape == (2, 3, *size)
    assert logits.isfinite().all()


@pytest.mark.parametrize("case", CASES)
def test_bf16_autocast(case):
    model = make(case).eval()
    images = torch.randn(2, 4, 64, 64)
    with torch.no_grad():
        plain = model(images)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = model(images)
    assert half.isfinite().all()
    assert (half.float() - plain).norm() / plain.norm() < 0.1


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [(1, 1), (5, 130), (96, 80)])
def test_fused_in_half_precision_on_a_cpu(case, size, monkeypatch):
    """`crisp predict` takes it by itself where the processor multiplies in bfloat16; elsewhere it is imitated here."""
    monkeypatch.setattr(onednn, "multiplies_bfloat16", lambda device: True)
    model, images = make(case).eval(), torch.randn(2, 4, *size)
    with torch.no_grad():
        truth = copy.deepcopy(model).double()(images.double())
        cast = relative_error(copy.deepcopy(model).bfloat16()(images.bfloat16()), truth)
    found = model.fused(torch.bfloat16)(images)
    assert found.dtype == torch.float32 and found.isfinite().all()
    assert relative_error(found, truth) < max(2 * cast, 2e-2)


@pytest.mark.parametrize("case", KINDS)
def test_save_and_load_are_bit_equal(case, tmp_path):
    model = make(case).eval()
    model.save(tmp_path / "model")
    images = torch.randn(1, 4, 40, 56)
    assert torch.equal(crispseg.load(tmp_path / "model")(images), model(images))


@pytest.mark.parametrize("case", KINDS)
def test_export_with_dynamic_height_and_width(case):
    model = make(case).eval()
    dynamic = {2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
    exported = torch.export.export(model, (torch.randn(1, 4, 64, 96),), dynamic_shapes=(dynamic,)).module()
    for size in ((64, 96), (75, 131), (160, 33)):
        images = torch.randn(1, 4, *size)
        torch.testing.assert_close(exported(images), model(images), rtol=1e-4, atol=1e-5)


QUICK = ("crisp_nano", "vssd_nano_upernet")  # the others take the same paths and 75 s


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", QUICK)
def test_as_on_a_gpu(case, precision):
    """Where test_registered_gpu.py does it with every model at its full size."""
    model = make(case)
    model.info = ModelInfo(mean=(100.0,) * 4, std=(50.0,) * 4)
    check_evaluation(model.eval(), precision, [(1, 32), (2, 61)])
    if precision != "fp16":  # which a CPU does not train in
        two_steps(model, precision, False, 2, 61)


def test_a_rival_without_timm_fails_where_all_models_are_asked_for(monkeypatch):
    monkeypatch.setattr(test_registered_gpu, "missing_requirement", lambda entry: "pip install 'crispseg[peers]'")
    monkeypatch.delenv(test_registered_gpu.ALL_MODELS, raising=False)
    with pytest.raises(pytest.skip.Exception, match="peers"):
        test_registered_gpu.make("unetformer_r18")
    monkeypatch.setenv(test_registered_gpu.ALL_MODELS, "1")
    with pytest.raises(pytest.fail.Exception, match="peers"):
        test_registered_gpu.make("unetformer_r18")


@pytest.mark.parametrize(
    "case", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in KINDS]
)
def test_compiles_to_one_graph(case):
    torch.compiler.reset()  # what other tests compiled counts towards the limit of recompilations
    model = make(case)
    images, target = torch.randn(2, 4, 64, 64), torch.randint(0, 3, (2, 64, 64))
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled.eval()(images), model.eval()(images), rtol=1e-4, atol=1e-5)
    model.train(), compiled.train()
    for m in (model, compiled):
        torch.manual_seed(0)  # dropout
        segmentation_loss(m(images), target, LossConfig())["total"].backward()
    for a, b in zip(model.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", OURS)
def test_full_size_is_built_and_counted(name):
    with torch.device("meta"):
        model = crispseg.create_model(name, num_classes=6)
    summary = summarize(model, 64, 64)
    assert summary.parameters == sum(p.numel() for p in model.parameters())
    assert summary.macs > 0


def test_the_papers_counts():
    def count(name, **options):
        with torch.device("meta"):
            return summarize(crispseg.create_model(name, num_classes=5, **options))

    baseline = count("vssd_tiny_upernet")
    assert baseline.parameters / 1e6 == pytest.approx(56.10, rel=1e-3)
    assert baseline.training_macs / 1e9 == pytest.approx(235.65, rel=1e-3)
    for neck in ("concat", "topdown"):
        crisp = count("crisp_tiny", neck=neck)
        assert crisp.parameters / 1e6 == pytest.approx(32.3, rel=1e-2)
        assert crisp.macs / 1e9 <= 45


def test_nano_is_nano():
    with torch.device("meta"):
        assert 4e6 <= summarize(crispseg.create_model("crisp_nano", num_classes=6)).parameters <= 5e6


def test_allocation_at_full_size():
    model = make("crisp_nano as it is").eval()
    images = torch.randn(1, 4, 50, 70)
    logits, allocation = model.allocate(images)
    torch.testing.assert_close(logits, model(images))
    assert allocation.shape == logits.shape
    assert set(allocation.unique().tolist()) <= {0, 1, 2}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("crisp_nano", {"heads": [1, 2, 4, 7], "last_stage": "attention"}, "7 heads do not divide the width 256"),
        ("crisp_nano", {"width": 1}, "width must be at least 2, as the stem begins with half of it, not 1"),
        (
            "crisp_nano",
            {"fusion": "selective", "selectivity": math.nan},
            "selectivity must be a finite number, not nan",
        ),
        ("crisp_nano", {"dco": {"init": math.nan}}, "dco.init must be a finite number, not nan"),
        ("crisp_nano", {"dim": 7, "attention_heads": 1}, "dim must be even"),
        ("vssd_nano_upernet", {"channels": 0}, "channels must be from 1"),
        ("vssd_nano_upernet", {"pool_scales": [1, 0]}, "pool_scales must be from 1"),
        ("vssd_nano_upernet", {"dropout": 2.0}, "dropout must be from 0 to 1, not 2"),
    ],
)
def test_options_that_no_network_has_are_refused(name, options, message):
    with pytest.raises(UserError, match=message):
        crispseg.create_model(name, **options)


def test_names_and_mistakes():
    assert crispseg.list_models("crisp_t*") == ["crisp_tiny"]
    with pytest.raises(UserError, match="unknown model 'crisp_tinny'; did you mean 'crisp_tiny'"):
        crispseg.create_model("crisp_tinny")
    with pytest.raises(UserError, match="unknown model option 'prototype'; did you mean 'prototypes'"):
        crispseg.create_model("crisp_nano", prototype=3)
    with pytest.raises(UserError, match="at least one class"):
        crispseg.create_model("crisp_nano", num_classes=0)
    with pytest.raises(UserError, match="at least one band"):
        crispseg.create_model("crisp_nano", in_channels=0)
