"""Exported files against the model: onnxruntime and torch are the oracles, at sizes nobody captured."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import crispseg
from crispseg.export import verify
from crispseg.export.run import export
from tests.conftest import relative_error
from tests.export.conftest import expected, raw_images, small_crisp, small_model


def run_file(path, image):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"image": image.numpy()})[0])


@pytest.mark.parametrize("shape", [(1, 3, 64, 64), (3, 3, 37, 131), (2, 3, 5, 9), (1, 3, 1, 1)])
def test_any_size_gives_the_models_logits(model, onnx_file, shape):
    image = raw_images(*shape)
    assert relative_error(run_file(onnx_file, image), expected(model, image)) < 1e-5


def test_the_graph_uses_no_domain_but_onnx_own_and_no_path_of_this_machine(onnx_file):
    graph = onnx.load(onnx_file)
    onnx.checker.check_model(graph, full_check=True)
    assert [(entry.domain, entry.version) for entry in graph.opset_import] == [("", 18)]
    assert not {node.domain for node in graph.graph.node} - {""}
    assert "CastLike" not in {node.op_type for node in graph.graph.node}  # TensorRT's parser lacks it
    assert b"site-packages" not in graph.SerializeToString()
    assert [axis.dim_param for axis in graph.graph.input[0].type.tensor_type.shape.dim] == [
        "batch", "", "height", "width"
    ]  # fmt: skip


def test_probabilities_for_one_size_carry_the_temperature(tmp_path):
    model = small_model(temperature=2.5)
    made = export(model, tmp_path / "m.onnx", output="softmax", size=(40, 56), batch=1)
    image = raw_images(1, 3, 40, 56)
    found = run_file(str(tmp_path / "m.onnx"), image)
    assert relative_error(found, (expected(model, image) / 2.5).softmax(1)) < 1e-5
    assert made.checks[0].shape == (1, 3, 40, 56) and made.error < 1e-5
    loaded = crispseg.load(tmp_path / "m.onnx")
    torch.testing.assert_close(loaded.probabilities(loaded(image)), found, rtol=1e-4, atol=1e-6)  # divided once


def test_class_ids_are_bytes(tmp_path, model):
    export(model, tmp_path / "m.onnx", output="argmax", size=(40, 56))
    image = raw_images(2, 3, 40, 56)
    found = run_file(str(tmp_path / "m.onnx"), image)
    assert found.dtype == torch.uint8 and found.shape == (2, 40, 56)
    assert (found != expected(model, image).argmax(1)).float().mean() < 1e-3


def test_float16_keeps_its_sums(tmp_path, model):
    export(model, tmp_path / "m.onnx", precision="float16", size=(64, 64))
    image = raw_images(1, 3, 64, 64)
    assert relative_error(run_file(str(tmp_path / "m.onnx"), image), expected(model, image)) < 2e-2
    kinds = {tensor.data_type for tensor in onnx.load(tmp_path / "m.onnx").graph.initializer}
    assert onnx.TensorProto.FLOAT16 in kinds


def test_a_program_of_torch_answers_at_other_sizes(tmp_path, model):
    crispseg.export(model, tmp_path / "m.pt2")
    program = torch.export.load(tmp_path / "m.pt2").module()
    image = raw_images(1, 3, 71, 99)
    assert relative_error(program(image), expected(model, image)) < 1e-5


def test_a_disk_that_takes_no_more_is_told_and_leaves_nothing(tmp_path, model):
    """torch's own writer ended the process there, with its destructor's complaint."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(crispseg.UserError, match="cannot write .*m.pt2"):
            export(model, tmp_path / "m.pt2", size=(32, 32), batch=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_package_compiled_ahead_of_time_answers(tmp_path, model):
    export(model, tmp_path / "m.pt2", format="aoti", size=(64, 64), batch=1)
    program = torch._inductor.aoti_load_package(str(tmp_path / "m.pt2"))
    image = raw_images(1, 3, 64, 64)
    assert relative_error(program(image), expected(model, image)) < 1e-4
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt2"]


def test_what_fails_its_check_leaves_no_file(tmp_path, model, monkeypatch):
    monkeypatch.setitem(verify.BOUNDS, "float32", 1e-30)
    monkeypatch.setattr(verify, "_COARSEST", 1e-30)
    with pytest.raises(crispseg.UserError, match="is not the model"):
        export(model, tmp_path / "m.onnx", size=(32, 32), batch=1)
    assert not list(tmp_path.iterdir())


def test_networks_with_nodes_torch_must_take_apart_are_exported_too(tmp_path):
    """An in-place write and a transposed convolution: neither can be translated as captured."""

    class Odd(crispseg.models.base.SegmentationModel):
        def __init__(self):
            super().__init__()
            self.up = torch.nn.ConvTranspose2d(3, 2, 2, stride=2)

        def forward(self, image):
            image = image.clone()
            image[:, 0] = 0.0
            return torch.nn.functional.avg_pool2d(self.up(image), 2)

    odd = Odd().eval()
    odd.name, odd.options, odd.num_classes, odd.in_channels = "odd", {}, 2, 3
    odd.info = small_model().info.__class__(mean=(1.0,) * 3, std=(2.0,) * 3)
    assert export(odd, tmp_path / "m.onnx").error < 1e-5


def test_a_model_that_rounds_coarsely_is_as_far_from_its_file(tmp_path):
    """Its float32 is further from its float64 than the bound: the file's rounding is another, and as good."""

    class Coarse(crispseg.models.base.SegmentationModel):
        def __init__(self):
            super().__init__()
            self.mix, self.head = torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.Conv2d(64, 3, 1)

        def forward(self, image):
            mixed = self.mix(image) + 3e3
            return self.head(mixed - mixed.mean((2, 3), keepdim=True))

    torch.manual_seed(0)
    coarse = Coarse().eval()
    coarse.name, coarse.options, coarse.num_classes, coarse.in_channels = "coarse", {}, 3, 3
    coarse.info = small_model().info
    assert export(coarse, tmp_path / "m.onnx", size=(90, 70), batch=1).error < 2e-3
    with torch.no_grad():
        coarse.head.weight.mul_(torch.tensor(float("nan")))
    with pytest.raises(crispseg.UserError, match="is not the model"):
        export(coarse, tmp_path / "nan.onnx", size=(90, 70), batch=1)


@pytest.mark.parametrize(
    ("name", "choice", "said"),
    [
        ("m.tflite", {}, "ends in .onnx or .pt2"),
        ("m.pt2", {"format": "onnx"}, "ends in .onnx"),
        ("m.onnx", {"output": "softmaks"}, "softmax"),
        ("m.onnx", {"precision": "int8"}, "--calibrate FOLDER"),
        ("m.onnx", {"calibrate": "somewhere"}, "--precision int8"),
        ("m.onnx", {"size": (0, 64)}, "height must be at least 1"),
        ("m.onnx", {"batch": 0}, "batch must be at least 1"),
        ("m.onnx", {"sise": (64, 64)}, "size"),
    ],
)
def test_mistakes_are_told_before_anything_is_done(tmp_path, model, name, choice, said):
    with pytest.raises(crispseg.UserError, match=said):
        export(model, tmp_path / name, **choice)
    assert not list(tmp_path.iterdir())


def test_a_model_without_normalisation_is_refused(tmp_path):
    with pytest.raises(crispseg.UserError, match="means"):
        export(small_model(mean=(), std=()), tmp_path / "m.onnx")


def test_an_exported_file_is_not_exported_again(tmp_path, onnx_file):
    with pytest.raises(crispseg.UserError, match="exported file already"):
        export(onnx_file, tmp_path / "again.onnx")


def test_crisp_gives_its_logits_at_any_size(tmp_path):
    crisp = small_crisp()
    assert export(crisp, tmp_path / "m.onnx").error < 1e-5
    for shape in ((1, 3, 64, 64), (3, 3, 37, 131), (2, 3, 5, 9), (1, 3, 1, 1)):
        image = raw_images(*shape)
        assert relative_error(run_file(str(tmp_path / "m.onnx"), image), expected(crisp, image)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("choice", [{"precision": "float16"}, {"output": "softmax", "size": (64, 96)}])
def test_crisp_in_other_forms(tmp_path, choice):
    assert export(small_crisp(), tmp_path / "m.onnx", **choice).error < 2e-2


@pytest.mark.slow
def test_crisp_as_a_program_of_torch(tmp_path):
    crisp = small_crisp()
    export(crisp, tmp_path / "m.pt2")
    image = raw_images(1, 3, 71, 99)
    assert relative_error(torch.export.load(tmp_path / "m.pt2").module()(image), expected(crisp, image)) < 1e-5


def test_the_model_is_left_as_it_was(tmp_path):
    model = small_model().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    export(model, tmp_path / "m.pt2", size=(32, 32), batch=1)
    assert model.training
    assert all(np.array_equal(before[name], tensor) for name, tensor in model.state_dict().items())
