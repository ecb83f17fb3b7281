"""`--exact`: the map of a scene is that of the model applied to the whole array, from the command and from Python."""

import dataclasses

import numpy as np
import pytest
import rasterio
import torch

import crispseg
from crispseg.cli.main import main
from crispseg.errors import UserError
from crispseg.geo.maps import MapChoice
from crispseg.models.base import ModelInfo
from crispseg.predict.batch import predict_scenes
from crispseg.predict.engines.exact import ExactEngine
from crispseg.predict.scene import Request
from crispseg.predict.segment import segment
from crispseg.predict.work import Settings
from tests.geo.rasters import UTM, random_pixels, write_raster
from tests.models.test_registered import SHRINK_CRISP
from tests.predict.standins import StandIn

EXACT = Request(Settings(32, 8, exact=True))


@pytest.fixture
def model():
    torch.manual_seed(3)
    model = crispseg.create_model("crisp_nano", num_classes=4, **SHRINK_CRISP).eval()
    model.info = ModelInfo(
        classes=tuple("abcd"), palette=((0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 3, 3)), mean=(100.0,) * 3, std=(60.0,) * 3
    )
    return model


def whole(model, pixels):
    """Probabilities of the whole array at once; pixels (bands, H, W)."""
    image = (torch.from_numpy(pixels.astype(np.float32)) - 100) / 60
    with torch.no_grad():
        return model(image[None])[0].softmax(0)


def check(classes, probabilities):
    best = probabilities.topk(2, dim=0).values
    clear = (best[0] - best[1] > 1e-4).numpy()
    assert clear.mean() > 0.95
    np.testing.assert_array_equal(classes[clear], probabilities.argmax(0).numpy()[clear])


def test_from_python(model):
    pixels = random_pixels(3, 77, 50)
    check(segment(np.moveaxis(pixels, 0, 2), model, exact=True, tile=32), whole(model, pixels))


def test_from_the_command(model, tmp_path, capsys):
    pixels = random_pixels(3, 90, 61)
    scene = write_raster(tmp_path / "scene.tif", pixels, **UTM)
    model.save(tmp_path / "model")
    words = ["predict", str(scene), "-o", str(tmp_path / "map.tif"), "-m", str(tmp_path / "model"), "--exact"]
    assert main([*words, "--dry-run"]) == 0
    assert "61 x 90 px as one image" in capsys.readouterr().out
    assert main([*words, "--probabilities", "--confidence"]) == 0
    truth = whole(model, pixels)
    with rasterio.open(tmp_path / "map.tif") as made:
        check(made.read(1), truth)
    with rasterio.open(tmp_path / "map_probabilities.tif") as made:
        assert np.abs(made.read() / 254 - truth.numpy()).max() < 0.5 / 254 + 1e-4


def test_no_data_stays_no_data(model, tmp_path):
    pixels = random_pixels(3, 70, 40) | 1
    pixels[:, 10:30, 5:20] = 0
    scene = write_raster(tmp_path / "scene.tif", pixels, nodata=0, **UTM)
    request = dataclasses.replace(EXACT, maps=MapChoice(confidence=True))
    assert not predict_scenes([str(scene)], str(tmp_path / "map.tif"), model, request).failures
    with rasterio.open(tmp_path / "map.tif") as made:
        assert np.array_equal(made.read(1) == 255, (pixels == 0).all(axis=0))


def test_only_the_strips_that_are_wanted(model, tmp_path):
    """A resumed run computes again but gives only what its journal lacks, the same bytes."""
    from crispseg.predict.bands import Pace
    from crispseg.predict.plan import make_plan
    from crispseg.predict.work import Work
    from crispseg.raster.products import Products
    from crispseg.raster.source import ArraySource

    pixels = np.moveaxis(random_pixels(3, 100, 40), 0, 2)
    work = Work(
        ArraySource(pixels, model.info.mean), model, make_plan(100, 40, 32, 8), EXACT.settings, Products(), Pace()
    )
    every = {band.index: band for band in ExactEngine().bands(work, [range(work.plan.strips)], lambda: None)}
    assert sorted(every) == list(range(work.plan.strips))
    some = list(ExactEngine().bands(work, [range(1, 2), range(3, 4)], lambda: None))
    assert [band.index for band in some] == [1, 3]
    for band in some:
        assert np.array_equal(band.classes, every[band.index].classes)
    abandoned = ExactEngine().bands(work, [range(work.plan.strips)], lambda: None)
    next(abandoned)
    abandoned.close()  # must not hang


def test_what_cannot_be_run_as_one_image(model, tmp_path):
    pixels = random_pixels(3, 40, 40)
    scene = str(write_raster(tmp_path / "scene.tif", pixels, **UTM))
    report = predict_scenes([scene], str(tmp_path / "map.tif"), StandIn(), EXACT)
    assert "cannot run a scene as one image" in report.failures[0][1]
    assert "not once they are ONNX files" in report.failures[0][1], "a file's card calls it CRISP, too"
    flips = dataclasses.replace(EXACT, settings=dataclasses.replace(EXACT.settings, tta="flip"))
    report = predict_scenes([scene], str(tmp_path / "map.tif"), model, flips)
    assert "leave out --tta" in report.failures[0][1]
    with pytest.raises(UserError, match="in this process only"):
        predict_scenes([scene], str(tmp_path / "map.tif"), model, EXACT, engine="ray")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["scene.tif"]
