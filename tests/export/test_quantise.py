"""Int8 on a folder of labelled images, and on one of images alone."""

import errno

import numpy as np
import onnx
import pytest
from PIL import Image

import crispseg
from crispseg.cli.export import _summary
from crispseg.export import quantise
from crispseg.export.run import export
from crispseg.export.windows import read_windows
from tests.export.conftest import small_model
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


@pytest.mark.parametrize("choice", [{}, {"size": (100, 128)}, {"size": (48, 160)}])
def test_any_batch_and_sizes_beyond_the_images_are_calibrated(tmp_path, model, folder, choice):
    made = export(model, tmp_path / "m.onnx", precision="int8", calibrate=str(folder), max_loss=100, **choice, batch=3)
    one = export(model, tmp_path / "one.onnx", precision="int8", calibrate=str(folder), max_loss=100, **choice, batch=1)
    assert made.loss == one.loss and made.loss.before is not None


def test_windows_larger_than_their_image_show_its_reflection(model, folder):
    (small, labels), (large, framed) = (
        read_windows(str(folder), model, size, 1).scoring[0] for size in ((64, 96), (70, 40))
    )
    np.testing.assert_array_equal(large[0, :, 3:67], small[0, :, :, 28:68])
    np.testing.assert_array_equal(large[0, :, :3], small[0, :, 3:0:-1, 28:68])
    np.testing.assert_array_equal(framed[3:67], labels[:, 28:68])
    assert (framed[:3] == 255).all() and (framed[67:] == 255).all()


def test_pixels_without_data_are_calibrated_as_predict_shows_them(tmp_path):
    """The image mirrored, whatever stands there: infinity as a number would make one step of all int8."""
    rasterio = pytest.importorskip("rasterio")
    values = np.full((3, 20, 24), 50.0, np.float32)
    values[:, 4, 5:9] = np.nan, np.inf, -np.inf, -3.4e38
    for part in ("a", "a/images", "a/masks"):
        (tmp_path / part).mkdir()
    with rasterio.open(tmp_path / "a/images/x.tif", "w", "GTiff", 24, 20, 3, dtype="float32") as file:
        file.write(values)
    Image.fromarray(np.arange(480, dtype=np.uint8).reshape(20, 24) % 3).save(tmp_path / "a/masks/x.png")
    windows = read_windows(str(tmp_path / "a/images"), small_model(dtype="float32"), None, 4)
    assert (windows.scoring[0].image == 50).all()


def test_images_of_other_numbers_than_the_models_are_refused(tmp_path):
    Image.fromarray(np.full((40, 48), 9000, np.uint16)).save(tmp_path / "wide.png")
    eight = small_model(mean=(90.0,), std=(40.0,), dtype="uint8")
    eight.in_channels = 1
    with pytest.raises(crispseg.UserError, match=r"wide\.png does not suit the model: .*8-bit.*calibrate on images"):
        read_windows(str(tmp_path), eight, None, 4)


def test_where_no_pixel_is_labelled_the_maps_are_compared(tmp_path, model):
    blank = fake_own(tmp_path / "own", colour=True, size=(32, 40))
    for path in (blank / "masks").iterdir():
        Image.fromarray(np.zeros((32, 40, 3), np.uint8)).save(path)
    table = blank / "classes.csv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join([lines[0] + ",ignore", *(line + "," for line in lines[1:]), "nothing,0,0,0,1"]) + "\n")
    said = export(model, tmp_path / "m.onnx", precision="int8", calibrate=str(blank), max_loss=100).loss.sentence()
    assert said.startswith("int8 agrees with float32")


def test_other_names_of_classes_are_told(folder):
    named = read_windows(str(folder), small_model(classes=("a", "b", "c")), None, 1)
    assert any("calls its classes a, b, c" in note for note in named.notes)


def test_a_full_disk_for_temporary_files_is_named(tmp_path, model, folder, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(onnx, "save", full)
    with pytest.raises(crispseg.UserError, match="no space left to write .*crisp-int8-"):
        export(model, tmp_path / "m.onnx", precision="int8", calibrate=str(folder), batch=1)
    assert not list(tmp_path.iterdir())
