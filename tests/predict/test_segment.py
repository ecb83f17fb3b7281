import sys

import numpy as np
import pytest
import torch
from PIL import Image

import crispseg
from crispseg.errors import UserError
from crispseg.models.base import ModelInfo
from crispseg.predict import segment
from tests.predict.standins import StandIn


def nearest_class(image):
    return np.abs(image.astype(int).sum(axis=2)[None] - 20 * np.arange(5)[:, None, None]).argmin(axis=0)


@pytest.fixture
def image():
    return np.random.default_rng(0).integers(0, 30, (70, 90, 3)).astype(np.uint8)


def test_an_array_a_picture_and_a_file_are_the_same(image, tmp_path):
    expected = nearest_class(image)
    Image.fromarray(image).save(tmp_path / "image.png")
    for same in (image, Image.fromarray(image), tmp_path / "image.png", str(tmp_path / "image.png")):
        np.testing.assert_array_equal(segment(same, StandIn(), tile=32, overlap=8), expected)


def test_files_are_read_with_pillow_where_rasterio_is_missing(image, tmp_path, monkeypatch):
    Image.fromarray(image).save(tmp_path / "image.png")
    for name in [name for name in sys.modules if name.startswith("crispseg.geo")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rasterio", None)
    np.testing.assert_array_equal(segment(tmp_path / "image.png", StandIn(), tile=32, overlap=8), nearest_class(image))
    with pytest.raises(UserError, match="no file"):
        segment(tmp_path / "none.png", StandIn())


def test_a_small_image_without_overlap_is_the_model_applied_to_it(image):
    model = crispseg.create_model("crisp_nano", num_classes=5).eval()
    model.info = ModelInfo(mean=(15.0,) * 3, std=(9.0,) * 3)
    part = image[:64, :64]
    normal = (torch.from_numpy(part).permute(2, 0, 1)[None].float() - 15) / 9
    with torch.no_grad():
        best = model(normal)[0].sort(dim=0, descending=True)
    clear = (best.values[0] - best.values[1] > 1e-3).numpy()
    classes = segment(part, model, overlap=0)
    np.testing.assert_array_equal(classes[clear], best.indices[0].numpy()[clear])


def test_masked_transparent_and_not_a_number_are_no_data(image):
    mask = np.zeros(image.shape, bool)
    mask[:5] = True
    classes = segment(np.ma.masked_array(image, mask), StandIn())
    assert (classes[:5] == 255).all() and (classes[5:] < 5).all()

    alpha = np.full((70, 90, 1), 255, np.uint8)
    alpha[:, :7] = 0
    classes = segment(Image.fromarray(np.concatenate([image, alpha], axis=2)), StandIn())
    assert (classes[:, :7] == 255).all() and (classes[:, 7:] < 5).all()

    holes = image.astype(np.float32)
    holes[3, 4] = np.nan
    holes[5, 6, 0] = np.nan  # two bands remain
    classes = segment(holes, StandIn())
    assert classes[3, 4] == 255
    assert (classes == 255).sum() == 1


def test_one_band_and_palette_pictures():
    grey = np.random.default_rng(0).integers(0, 90, (20, 30)).astype(np.uint8)
    expected = np.abs(grey.astype(int)[None] - 20 * np.arange(5)[:, None, None]).argmin(axis=0)
    np.testing.assert_array_equal(segment(grey, StandIn(bands=1)), expected)
    np.testing.assert_array_equal(segment(Image.fromarray(grey), StandIn(bands=1)), expected)
    picture = Image.fromarray(np.stack([grey // 3 * 8] * 3, axis=2)).quantize(30)
    expanded = np.asarray(picture.convert("RGB"))
    np.testing.assert_array_equal(segment(picture, StandIn(step=150.0)), segment(expanded, StandIn(step=150.0)))


def test_a_saved_model_is_loaded(image, tmp_path):
    model = crispseg.create_model("crisp_nano", num_classes=3)
    model.info = ModelInfo(mean=(15.0,) * 3, std=(9.0,) * 3)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(segment(image, tmp_path / "model", tile=64), segment(image, model, tile=64))


def test_the_callers_model_stays_in_its_mode(image):
    model = StandIn().train()
    segment(image, model)
    assert model.training


def test_mistakes_are_explained(image, tmp_path):
    with pytest.raises(UserError, match="no pixels"):
        segment(image[:0], StandIn())
    with pytest.raises(UserError, match="not list"):
        segment([1, 2], StandIn())
    with pytest.raises(UserError, match="no file"):
        segment(tmp_path / "none.tif", StandIn())
    with pytest.raises(UserError, match="device 'warp9' cannot be used"):
        segment(image, StandIn(), device="warp9")
