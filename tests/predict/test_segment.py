import gc
import sys
import warnings
import weakref

import numpy as np
import pytest
import torch
from PIL import Image

import crispseg
from crispseg.errors import UserError
from crispseg.models.base import ModelInfo
from crispseg.predict import evaluate, segment
from tests.geo.rasters import UTM, write_raster
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
    classes = segment(part, model, overlap=0, precision="float32")
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


@pytest.mark.parametrize("form", ["array", "picture", "file"])
def test_a_number_is_no_data_if_its_user_says_so(image, tmp_path, form):
    image = np.maximum(image, 1)
    image[:10] = 0
    Image.fromarray(image).save(tmp_path / "a.png")
    given = {"array": image, "picture": Image.fromarray(image), "file": tmp_path / "a.png"}[form]
    missing = crispseg.segment(given, StandIn(), nodata=0) == 255
    assert missing[:10].all() and not missing[10:].any()


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


def test_true_and_false_are_no_pixels(image):
    """A mask, given by mistake, was mapped as a picture that is nearly black."""
    model = StandIn().with_card(mean=(90.0,) * 3, dtype="uint8")
    with pytest.raises(UserError, match="its pixels are true or false, and the model was trained on pixels around 90"):
        segment(image > 10, model)
    assert segment(image > 10, model, any_values=True).shape == image.shape[:2]
    segment(image > 10, StandIn())  # whatever it was trained on


def blocks(height=128, width=192, side=32):
    """Large even patches, whose classes survive resampling away from their edges."""
    grey = np.random.default_rng(3).integers(0, 4, (height // side, width // side)) * 20
    return np.stack([grey.repeat(side, axis=0).repeat(side, axis=1), *np.zeros((2, height, width))]).astype(np.uint8)


def inner(classes, side=32, margin=4):
    """The classes away from the edges of the patches."""
    rows, cols = (np.arange(n) % side for n in classes.shape)
    middle = [(x >= margin) & (x < side - margin) for x in (rows, cols)]
    return classes[np.ix_(*middle)]


class Sizes(StandIn):
    """Remembers the size of what it is shown."""

    def forward(self, x):
        self.seen = tuple(x.shape[-2:])
        return super().forward(x)


@pytest.mark.parametrize(
    ("resolutions", "seen"), [((1.0, 2.0), (64, 96)), ((0.1, 0.25), (256, 384)), ((0.1, 1.0), (128, 192))]
)
def test_a_georeferenced_file_is_shown_at_the_models_scale_and_the_map_fits_the_file(tmp_path, resolutions, seen):
    path = write_raster(tmp_path / "a.tif", blocks(), **UTM)  # pixels of 0.5 m
    model = Sizes().with_card(resolutions=resolutions)
    expected = segment(path, model, resolution="scene", overlap=0) if seen == (128, 192) else None
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        classes = segment(path, model, overlap=0)
    assert model.seen == seen and classes.shape == (128, 192)
    np.testing.assert_array_equal(inner(classes), inner(nearest_class(np.moveaxis(blocks(), 0, 2))))
    if expected is not None:
        np.testing.assert_array_equal(classes, expected)
    assert [str(w.message) for w in told if "it is resampled to" in str(w.message)] == [
        str(w.message) for w in told[: seen != (128, 192)]
    ]
    assert all(w.filename == __file__ for w in told), "where the user called it"


def test_scene_leaves_a_file_as_it_is(tmp_path):
    path = write_raster(tmp_path / "a.tif", blocks(), **UTM)
    model = Sizes().with_card(resolutions=(1.0, 2.0))
    with pytest.warns(UserWarning, match="expect a poor map"):
        segment(path, model, resolution="scene", overlap=0)
    assert model.seen == (128, 192)


def test_an_array_has_the_scale_that_its_user_says(tmp_path):
    pixels = np.moveaxis(blocks(), 0, 2)
    model = Sizes().with_card(resolutions=(1.0, 2.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        segment(pixels, model, overlap=0)
    assert model.seen == (128, 192), "nothing is known: as it is"
    for image in (pixels, Image.fromarray(pixels)):
        with pytest.warns(UserWarning, match="the image has pixels of 0.5 m .* resampled to 1 m"):
            classes = segment(image, model, pixel_size=0.5, overlap=0)
        assert model.seen == (64, 96) and classes.shape == (128, 192)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    with pytest.warns(UserWarning, match="a.png has pixels of 0.5 m"):
        np.testing.assert_array_equal(segment(tmp_path / "a.png", model, pixel_size=0.5, overlap=0), classes)
    with pytest.raises(UserError, match="the image cannot be resampled: .*say it with --pixel-size"):
        segment(pixels, model, resolution=1.0)
    with pytest.raises(UserError, match="positive number of metres"):
        segment(pixels, model, pixel_size=0)


def test_as_one_image_at_another_scale(tmp_path):
    path = write_raster(tmp_path / "a.tif", blocks(), **UTM)
    model = crispseg.create_model("crisp_nano", num_classes=3)
    model.info = ModelInfo(mean=(15.0,) * 3, std=(9.0,) * 3)
    classes = segment(path, model, exact=True, resolution=1.0)
    assert classes.shape == (128, 192) and classes.max() < 3


def test_no_data_stays_where_it_is_at_another_scale(tmp_path):
    pixels = blocks() + 1
    pixels[:, 10:15, 30:37] = 0
    path = write_raster(tmp_path / "a.tif", pixels, nodata=0, **UTM)
    with pytest.warns(UserWarning, match="resampled to 0.25 m"):
        classes = segment(path, StandIn().with_card(resolutions=(0.1, 0.25)))
    np.testing.assert_array_equal(classes == 255, (pixels == 0).all(axis=0))


def test_without_a_model_the_default_is_used_and_told(monkeypatch, image):
    monkeypatch.setattr("crispseg.predict.default.load", lambda name: StandIn().with_card(training_data=f"{name}: x"))
    with pytest.warns(UserWarning, match="no model given: using crisp_nano_aerial, trained on crisp_nano_aerial; "):
        found = segment(image)
    np.testing.assert_array_equal(found, nearest_class(image))


def test_the_fused_model_is_kept_until_weights_change(monkeypatch, image):
    """Who segments many images one by one waits for it once; the map is always that of today's weights."""
    model = crispseg.create_model("crisp_nano", num_classes=5)
    model.info = ModelInfo(mean=(15.0,) * 3, std=(9.0,) * 3)
    made = []
    fuse = type(model).fused
    monkeypatch.setattr(type(model), "fused", lambda self, *given: made.append(given) or fuse(self, *given))
    part = image[:64, :64]
    first = segment(part, model)
    np.testing.assert_array_equal(segment(part, model), first)
    assert len(made) == 1
    segment(part, model, precision="float32" if made[0][0] == torch.bfloat16 else "bfloat16")
    assert len(made) == 2
    with torch.no_grad():
        model.head.hyper.biases[-1].add_(torch.randn_like(model.head.hyper.biases[-1]))
    changed = segment(part, model)
    assert len(made) == 3 and (changed != first).any()
    other = crispseg.create_model("crisp_nano", num_classes=5)
    model.load_state_dict(other.state_dict())
    other.info = model.info
    np.testing.assert_array_equal(segment(part, model), segment(part, other))


def test_the_kept_one_goes_with_its_model(image):
    model = crispseg.create_model("crisp_nano", num_classes=5)
    model.info = ModelInfo(mean=(15.0,) * 3, std=(9.0,) * 3)
    segment(image[:64, :64], model)
    watched, before = weakref.ref(model), len(evaluate._KEPT)
    del model
    gc.collect()
    assert watched() is None and len(evaluate._KEPT) < before
