"""An ONNX file in the place of a model: the same maps, through the same doors."""

import copy
import dataclasses
import json
import pickle
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

import crispseg
from crispseg.analysis import analyze
from crispseg.cli.main import main
from crispseg.data.folder import open_folder
from crispseg.evaluate import evaluate
from crispseg.export.run import export
from crispseg.predict.batch import weights_version
from tests.export.conftest import expected, raw_images
from tests.fakedata import fake_own


@pytest.fixture(scope="module")
def scene():
    return np.random.default_rng(0).integers(0, 255, (150, 210, 3), dtype=np.uint8)


def test_maps_are_the_models_bytes(model, onnx_file, scene):
    of_torch = crispseg.segment(scene, model, tile=96)
    of_file = crispseg.segment(scene, onnx_file, tile=96)
    assert (of_torch != of_file).mean() < 1e-4  # ties


def test_pixels_without_data_stay_without(onnx_file, scene):
    masked = np.ma.masked_array(scene, np.zeros(scene.shape, bool))
    masked[:40, :60] = np.ma.masked
    classes = crispseg.segment(masked, onnx_file, tile=96)
    assert (classes[:40, :60] == 255).all() and (classes[40:] != 255).all()


def test_it_travels_to_other_processes(model, onnx_file):
    loaded = pickle.loads(pickle.dumps(crispseg.load(onnx_file)))
    image = raw_images(2, 3, 40, 44)
    torch.testing.assert_close(loaded(image), expected(model, image), rtol=1e-4, atol=1e-4)


def test_the_temperature_is_used_once(tmp_path, model):
    warm = copy.deepcopy(model)
    warm.info = dataclasses.replace(model.info, temperature=2.0)
    export(warm, tmp_path / "m.onnx", size=(64, 64), batch=1)
    loaded, image = crispseg.load(tmp_path / "m.onnx"), raw_images(1, 3, 64, 64)
    wanted = (expected(model, image) / 2.0).softmax(1)
    torch.testing.assert_close(loaded.probabilities(loaded(image)), wanted, rtol=1e-4, atol=1e-5)


def test_files_are_told_apart(tmp_path, model, onnx_file):
    export(model, tmp_path / "other.onnx", size=(64, 64), batch=2)
    assert weights_version(crispseg.load(onnx_file)) != weights_version(crispseg.load(tmp_path / "other.onnx"))


def test_one_size_is_filled_up_to_and_no_further(tmp_path, model):
    export(model, tmp_path / "m.onnx", size=(64, 64), batch=2, output="softmax")
    fixed = crispseg.load(tmp_path / "m.onnx")
    assert fixed(raw_images(3, 3, 50, 64)).shape == (3, 3, 50, 64)
    whole = raw_images(3, 3, 64, 64)
    torch.testing.assert_close(fixed(whole).softmax(1), expected(model, whole).softmax(1), rtol=1e-4, atol=1e-5)
    with pytest.raises(crispseg.UserError, match="--tile 64"):
        fixed(raw_images(1, 3, 65, 64))


def test_class_ids_alone_cannot_be_blended(tmp_path, model):
    export(model, tmp_path / "m.onnx", size=(64, 64), batch=1, output="argmax")
    with pytest.raises(crispseg.UserError, match="--output logits"):
        crispseg.load(tmp_path / "m.onnx")


def test_damaged_missing_and_foreign_files_are_told(tmp_path, onnx_file):
    with pytest.raises(crispseg.UserError, match="there is no ONNX file"):
        crispseg.load(tmp_path / "none.onnx")
    (tmp_path / "cut.onnx").write_bytes(Path(onnx_file).read_bytes()[:5000])
    with pytest.raises(crispseg.UserError, match="damaged"):
        crispseg.load(tmp_path / "cut.onnx")
    foreign = onnx.load(onnx_file)
    del foreign.metadata_props[:]
    onnx.save(foreign, tmp_path / "foreign.onnx")
    with pytest.raises(crispseg.UserError, match="not written by `crisp export`"):
        crispseg.load(tmp_path / "foreign.onnx")
    content = Path(onnx_file).read_bytes()
    (tmp_path / "bytes.onnx").write_bytes(content.replace(b"crispseg", b"cri\xff\xfeseg"[:8]))
    with pytest.raises(crispseg.UserError, match="no text|not written by"):
        crispseg.load(tmp_path / "bytes.onnx")
    with pytest.raises(crispseg.UserError, match="has 3 classes, not 6"):
        crispseg.load(onnx_file, num_classes=6)


def card(model, **facts):
    (entry,) = (entry for entry in model.metadata_props if entry.key == "crispseg")
    entry.value = json.dumps(json.loads(entry.value) | facts)


def rename(model, before, after):
    for node in model.graph.node:
        node.input[:] = [after if name == before else name for name in node.input]
    model.graph.input[0].name = after


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model: card(model, num_classes=4), "logits of 3, and its card says image of 3 and logits of 4"),
        (lambda model: card(model, in_channels=4), "takes image of 3 .* says image of 4"),
        (lambda model: card(model, output="softmax"), "probabilities of 3"),
        (lambda model: rename(model, "image", "pixels"), "takes pixels of 3"),
    ],
)
def test_a_graph_that_is_not_the_cards_is_told_when_it_is_loaded(tmp_path, onnx_file, change, said):
    model = onnx.load(onnx_file)
    change(model)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(crispseg.UserError, match=said):
        crispseg.load(tmp_path / "m.onnx")


def test_a_program_of_torch_is_no_model(tmp_path):
    (tmp_path / "m.pt2").write_bytes(b"PK")
    with pytest.raises(crispseg.UserError, match=r"those that end in \.onnx"):
        crispseg.load(tmp_path / "m.pt2")


def test_it_only_evaluates(onnx_file):
    loaded = crispseg.load(onnx_file)
    with pytest.raises(crispseg.UserError, match="only evaluates"):
        loaded.train()
    with pytest.raises(crispseg.UserError, match="copy the file"):
        loaded.save("somewhere")


def test_eval_scores_it_as_the_model(model, onnx_file, tmp_path):
    folder = open_folder(fake_own(tmp_path / "own", colour=True, images=3, size=(48, 64)))
    of_torch, of_file = (evaluate(which, folder, "train").to_dict() for which in (model, crispseg.load(onnx_file)))
    assert of_file["scores"]["mIoU"] == pytest.approx(of_torch["scores"]["mIoU"], abs=1e-4)


def test_it_is_looked_into_as_the_model_is(model, onnx_file, tmp_path):
    folder = open_folder(fake_own(tmp_path / "own", colour=True, images=3, size=(48, 64)))
    found = analyze(crispseg.load(onnx_file), folder, "train", against=model, device="cpu")
    of_file, of_torch = (found.variants[which].mistakes.all for which in ("as trained", "against"))
    assert np.abs(of_file - of_torch).sum() <= 4  # ties
    assert f"{onnx_file} is an exported file: its blocks and prototypes cannot be looked into." in found.notes


def test_eval_and_predict_take_the_file(onnx_file, tmp_path, scene):
    pytest.importorskip("rasterio")
    data = fake_own(tmp_path / "own", colour=True, images=3, size=(48, 64))
    report = tmp_path / "report"
    assert main(["eval", onnx_file, str(data), "-o", str(report), "--worst", "0", "-q"]) == 0
    assert list(report.iterdir())
    Image.fromarray(scene).save(tmp_path / "scene.png")
    words = ["predict", str(tmp_path / "scene.png"), "-o", str(tmp_path / "map.tif"), "-m", onnx_file, "--tile", "96"]
    assert main([*words, "--polygons", str(tmp_path / "map.gpkg"), "-q"]) == 0
    assert (tmp_path / "map.tif").exists() and (tmp_path / "map.gpkg").exists()


def test_bench_times_it(onnx_file, tmp_path, capsys):
    words = ["bench", onnx_file, "--sizes", "32", "--repeats", "1", "--warmup", "0", "--out", str(tmp_path)]
    assert main(words) == 0
    assert onnx_file in (tmp_path / "bench.md").read_text()
