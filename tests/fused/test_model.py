"""Fused models against the models they were made from, on the CPU; test_gpu.py has the kernels and graphs."""

import copy
import importlib.util
import pickle

import pytest
import torch

import crispseg
from crispseg.errors import UserError
from tests.conftest import relative_error
from tests.fused.models import SMALL_UPER, small_crisp, unsettled

OPTIONS = {
    "topdown": {},
    "concat": {"neck": "concat"},
    "topdown at stride 2": {"descriptor_stride": 2, "descriptor_dim": 4},
    "concat at stride 4": {"neck": "concat", "descriptor_stride": 4, "descriptor_dim": 16},
    "shared hyper-network": {"hyper": "shared"},
    "concat, one for each class": {"neck": "concat", "hyper": "per_class"},
    "three layers": {"layers": 3},
    "raw fusion": {"fusion": "raw"},
    "no calibration": {"dco": False},
    "raw and uncalibrated": {"fusion": "raw", "dco": False},
    "only the residual": {"dco": {"highpass": False, "rebalance": False}},
    "only the high-pass": {"dco": {"residual": False, "rebalance": False}},
    "only the rebalancing": {"dco": {"residual": False, "highpass": False}},
    "residual not normalised": {"dco": {"residual_readout": "unnormalized"}},
    "skip calibrated too": {"dco": {"skip": "before"}},
    "residual read by elu + 1": {"fusion": "raw", "dco": {"residual_readout": "elu", "skip": "before"}},
    "selective fusion": {"fusion": "selective", "selectivity": 2.0},
    "centred pixels": {"centred": True},
    "centred pixels, concat": {"centred": True, "neck": "concat"},
    "attention in the last stage": {"last_stage": "attention"},
}


def check(model, images, bounds=((torch.float64, 1e-10), (torch.float32, 1e-5))):
    wide = copy.deepcopy(model).double()
    with torch.no_grad():
        truth = wide(images.double())
    for dtype, bound in bounds:
        found = model.fused(dtype)(images)
        assert found.dtype == (dtype if dtype == torch.float64 else torch.float32)
        assert found.shape == truth.shape
        assert relative_error(found, truth) < bound


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_of_crisp(name):
    check(small_crisp(**OPTIONS[name]), torch.randn(2, 3, 40, 56))


@pytest.mark.parametrize("neck", ["topdown", "concat"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 5, 33, 47), (1, 2, 5, 130), (2, 4, 1, 64)])
def test_any_size_batch_and_bands(neck, shape):
    check(small_crisp(bands=shape[1], neck=neck), torch.randn(shape))


@pytest.mark.parametrize("prototypes", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("classes", [1, 9])
def test_any_number_of_classes_and_prototypes(prototypes, classes):
    check(small_crisp(classes, prototypes=prototypes), torch.randn(1, 3, 32, 40))


def test_widths_that_are_not_aligned():
    check(small_crisp(width=6, heads=(1, 2, 3, 4), state=3, attention_heads=4), torch.randn(1, 3, 32, 40))


@pytest.mark.parametrize("name", ["crisp_nano", "vssd_nano_upernet"])
def test_nano_as_it_is(name):
    check(unsettled(crispseg.create_model(name)), torch.randn(1, 3, 64, 64))


@pytest.mark.parametrize("options", [{}, {"fusion": "normalized", "dco": True}, {"last_stage": "attention"}])
def test_upernet_gets_the_fused_backbone(options):
    model = unsettled(crispseg.create_model("vssd_nano_upernet", 3, 3, **SMALL_UPER | options))
    check(model, torch.randn(2, 3, 40, 56))
    assert "FusedVSSD" in {type(module).__name__ for module in model.fused().modules()}


class Pyramid(torch.nn.Module):
    """Feature maps of a backbone that has no fused form."""

    def __init__(self, widths):
        super().__init__()
        self.steps = torch.nn.ModuleList(torch.nn.Conv2d(3, width, 1) for width in widths)

    def forward(self, image):
        maps = [step(image) for step in self.steps]
        return [torch.nn.functional.avg_pool2d(x, 4 << i, ceil_mode=True) for i, x in enumerate(maps)]


@pytest.mark.parametrize("neck", ["topdown", "concat"])
def test_the_head_on_a_backbone_that_has_no_fused_form(neck):
    model = small_crisp(neck=neck)
    model.backbone = Pyramid(model.backbone.widths)
    model = unsettled(model)
    check(model, torch.randn(2, 3, 40, 56))
    assert model.fused().as_written == ("backbone",)
    assert type(model.fused().network.head).__name__ == "FusedHead"


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="needs timm")
@pytest.mark.parametrize("name", ["unetformer_r18", "sfanet_effb3"])
def test_peers(name):
    model = unsettled(crispseg.create_model(name, 4, 3))
    check(model, torch.randn(1, 3, 64, 64))
    left = [module for module in model.fused().modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert len(left) < len([module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]) / 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(dtype):
    check(small_crisp(), torch.randn(2, 3, 64, 64), [(dtype, 5e-2)])


def test_the_model_is_left_as_it_was_and_later_changes_are_not_seen():
    model, images = small_crisp(), torch.randn(1, 3, 32, 32)
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        truth = model(images)
    fused = model.fused()
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert torch.equal(model(images), truth)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    torch.testing.assert_close(fused(images), truth, rtol=1e-4, atol=1e-4)


def test_the_precision_is_the_models_own_unless_told():
    model, images = small_crisp(), torch.randn(1, 3, 32, 32)
    assert model.double().fused()(images).dtype == torch.float64
    assert model.bfloat16().fused().network.backbone.dtype == torch.bfloat16


def test_it_carries_the_models_card():
    model = small_crisp(classes=4, bands=5)
    fused = model.fused()
    assert (fused.name, fused.num_classes, fused.in_channels) == ("crisp_nano", 4, 5)
    assert fused.info is model.info


def test_autocast_and_gradients_do_not_reach_it():
    model, images = small_crisp(), torch.randn(1, 3, 32, 32, requires_grad=True)
    fused = model.fused()
    plain = fused(images)
    assert not plain.requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fused(images), plain)


def test_it_only_evaluates():
    model = small_crisp()
    fused = model.fused()
    assert fused.eval() is fused and not fused.training
    with pytest.raises(UserError, match="only evaluates; train the model it was made from"):
        fused.train()
    with pytest.raises(UserError, match="in training mode.*call eval"):
        model.train().fused()
    with pytest.raises(UserError, match="cannot be fused in torch.int8"):
        model.eval().fused(torch.int8)


def test_exported_to_onnx():
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, images = small_crisp().fused(), torch.randn(1, 3, 40, 56)
    program = torch.onnx.export(model, (images,), dynamo=True, verbose=False)
    session = runtime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    assert relative_error(torch.from_numpy(found), model(images)) < 1e-5


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda fused: pickle.loads(pickle.dumps(fused))])
def test_a_fused_model_can_be_copied_and_pickled(copied):
    fused, image = small_crisp().eval().fused(), torch.randn(1, 3, 64, 96)
    expected = fused(image)
    twin = copied(fused)
    assert torch.equal(twin(image), expected)
    assert twin.graphs is not fused.graphs and twin.graphs.function.__self__ is twin
