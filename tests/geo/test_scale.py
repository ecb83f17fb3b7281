import numpy as np
import pytest

from crispseg.errors import UserError
from crispseg.geo.scenes import Reading, open_scene
from tests.geo.rasters import UTM, random_pixels, write_raster
from tests.predict.standins import StandIn


@pytest.fixture
def placed(tmp_path):
    return write_raster(tmp_path / "placed.tif", random_pixels(3, 40, 50), **UTM)  # pixels of 0.5 m


@pytest.fixture
def plain(tmp_path):
    return write_raster(tmp_path / "plain.tif", random_pixels(3, 40, 50))


def size(scene):
    return scene.grid.height, scene.grid.width


@pytest.mark.parametrize(
    ("card", "wanted"),
    [
        ({"resolutions": (0.1, 1.0)}, (40, 50)),  # inside the range: nothing to do
        ({"resolutions": (1.0, 2.0)}, (20, 25)),  # to its nearest end
        ({"resolutions": (0.1, 0.25)}, (80, 100)),
        ({"resolutions": (0.01, 0.1)}, (200, 250)),  # asked for, however coarse the scene is
        ({"resolutions": (0.1, 2.0), "resolution": 1.0}, (20, 25)),  # to the very size it was trained at
    ],
)
def test_the_models_resolution_is_its_own_or_the_nearest_end_of_its_range(placed, card, wanted):
    scene = open_scene(placed, StandIn().with_card(**card), Reading(resolution="model"))
    assert size(scene) == wanted and not scene.warnings


def test_a_card_without_resolutions_is_named_by_the_model(placed):
    model = StandIn()
    model.loaded_as = "streets-1"
    with pytest.raises(UserError, match="the card of model 'streets-1' does not say its resolution"):
        open_scene(placed, model, Reading(resolution="model"))


def test_unknown_pixels_are_taken_as_they_are_and_the_expected_scale_is_told(plain):
    scene = open_scene(plain, StandIn().with_card(resolutions=(1.0, 2.0)), Reading())
    assert size(scene) == (40, 50)
    assert "does not say how large its pixels are, and the model was trained for 1 to 2 m" in scene.warnings[1]
    for model, reading in (
        (StandIn(), Reading()),  # a card that does not say either
        (StandIn().with_card(resolutions=(1.0, 2.0)), Reading(resolution="scene")),  # wanted so
    ):
        assert [w for w in open_scene(plain, model, reading).warnings if "how large" in w] == []


def test_the_user_may_say_how_large_pixels_are(plain):
    model = StandIn().with_card(resolutions=(1.0, 2.0))
    scene = open_scene(plain, model, Reading(pixel_size=0.5))
    assert size(scene) == (20, 25)
    assert scene.grid.transform == (2.0, 0.0, 0.0, 0.0, 2.0, 0.0), "the map lies over the picture, in its pixels"
    assert scene.grid.pixel_size() == (1.0, 1.0) and scene.grid.area_unit == "m2"
    assert scene.grid.pixel_areas(3, 2).item() == 1.0
    assert scene.told.endswith("pixels of 0.5 m resampled to 1 m")
    assert "it is resampled to 1 m" in scene.warnings[0] and "the map will have none" in scene.warnings[1]
    as_it_is = open_scene(plain, model, Reading(pixel_size=1.5))
    assert size(as_it_is) == (40, 50) and as_it_is.told.endswith("pixels of 1.5 m as they are")
    assert size(open_scene(plain, StandIn(), Reading(pixel_size=0.5, resolution=0.25))) == (80, 100)


def test_scenes_that_say_it_themselves_are_believed(placed):
    scene = open_scene(placed, StandIn(), Reading(pixel_size=3.0))
    assert scene.grid.pixel_size() == (0.5, 0.5)
    assert "says itself that its pixels are of 0.5 m: --pixel-size is for scenes that do not" in scene.warnings[0]
    assert open_scene(placed, StandIn(), Reading(pixel_size=0.5)).warnings == ()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"resolution": 0.0}, "must be positive"),
        ({"resolution": float("nan")}, "must be positive"),
        ({"resolution": "finest"}, "'finest'"),
        ({"pixel_size": -1.0}, "positive number of metres"),
        ({"pixel_size": np.inf}, "positive number of metres"),
    ],
)
def test_sizes_that_cannot_be_are_refused(words, reason):
    with pytest.raises(UserError, match=reason):
        Reading(**words)
