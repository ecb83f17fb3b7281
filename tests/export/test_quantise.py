"""Int8 on a folder of labelled images, and on one of images alone."""

import onnx
import pytest

import crispseg
from crispseg.cli.export import _summary
from crispseg.export import quantise
from crispseg.export.run import export
from tests.fakedata import fake_own

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fake_own(tmp_path_factory.mktemp("own"), colour=True, size=(64, 96))


def test_layers_with_weights_become_int8_and_the_loss_is_told(tmp_path, model, folder):
    said = []
    made = export(
        model, tmp_path / "m.onnx", precision="int8", calibrate=str(folder), max_loss=100, batch=1, say=said.append
    )
    graph = onnx.load(tmp_path / "m.onnx").graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    kinds = {tensor.data_type for tensor in weights.values()}
    assert onnx.TensorProto.INT8 in kinds
    assert made.loss.before is not None and 0 <= made.loss.after <= 100
    assert any("points lost" in text for text in said)
    assert "against the model, before it was quantised, at " in _summary(made)
    assert crispseg.load(tmp_path / "m.onnx").card.precision == "int8"


def test_only_layers_with_one_matrix_are_quantised():
    """A stack of matrices has no scale per channel in onnxruntime, and products of activations are sums over tokens."""
    flat, stack = (
        onnx.helper.make_tensor(name, 1, dims, [1.0] * 8) for name, dims in (("w", (4, 2)), ("s", (2, 2, 2)))
    )
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["a"], name="layer"),
        onnx.helper.make_node("MatMul", ["w", "x"], ["b"], name="constant first"),
        onnx.helper.make_node("MatMul", ["a", "s"], ["c"], name="stack"),
        onnx.helper.make_node("MatMul", ["a", "b"], ["d"], name="activations"),
        onnx.helper.make_node("Relu", ["d"], ["y"], name="other"),
    ]
    graph = onnx.helper.make_graph(nodes, "g", [], [], [flat, stack])
    assert quantise.left_alone(onnx.helper.make_model(graph)) == ["constant first", "stack", "activations"]


def test_a_loss_that_is_too_large_leaves_no_file(tmp_path, model, folder, monkeypatch):
    monkeypatch.setattr(quantise, "measure_loss", lambda *_: quantise.Loss(80.0, 60.0, "2 windows"))
    with pytest.raises(crispseg.UserError, match="20.00 points lost.*--max-loss"):
        export(model, tmp_path / "m.onnx", precision="int8", calibrate=str(folder), size=(64, 96), batch=1)
    assert not list(tmp_path.iterdir())


def test_without_labels_the_maps_are_compared(tmp_path, model, folder):
    from crispseg.export.windows import read_windows

    windows = read_windows(str(folder / "images"), model, (32, 32), 4)
    assert len(windows.scoring) == 4 and windows.scoring[0].labels is None
    assert windows.scoring[0].image.shape == (1, 3, 32, 32)
    loss = quantise.Loss(None, 99.0, windows.scored_on)
    assert loss.points == pytest.approx(1.0) and "agrees" in loss.sentence()


def test_folders_that_do_not_fit_are_told(tmp_path, model):
    with pytest.raises(crispseg.UserError, match="no folder"):
        export(model, tmp_path / "m.onnx", precision="int8", calibrate=str(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(crispseg.UserError, match="no image"):
        export(model, tmp_path / "m.onnx", precision="int8", calibrate=str(tmp_path / "empty"))
    four = fake_own(tmp_path / "four", bands=4)
    with pytest.raises(crispseg.UserError, match="bands"):
        export(model, tmp_path / "m.onnx", precision="int8", calibrate=str(four / "images"))
