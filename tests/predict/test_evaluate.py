import numpy as np
import pytest
import torch

from crispseg.errors import UserError
from crispseg.predict.evaluate import CERTAIN, Evaluator, views
from tests.predict.standins import StandIn

CPU = torch.device("cpu")


@pytest.mark.parametrize(("tta", "count"), [("none", 1), ("flip", 4), ("d4", 8)])
def test_views_are_distinct_and_undone(tta, count):
    x = torch.arange(12.0).reshape(1, 1, 3, 4)
    shown = {tuple(view.show(x).flatten().tolist()) + tuple(view.show(x).shape) for view in views(tta)}
    assert len(shown) == count
    assert all(torch.equal(view.undo(view.show(x)), x) for view in views(tta))


def test_scores_are_the_softmax_of_normalised_pixels():
    model = StandIn(step=0.5).with_card(mean=(10.0, 20.0, 30.0), std=(2.0, 3.0, 4.0))
    tile = np.random.default_rng(0).integers(0, 60, (3, 5, 6)).astype(np.uint8)
    normal = (torch.from_numpy(tile).double() - torch.tensor([10.0, 20, 30])[:, None, None]) / torch.tensor(
        [2.0, 3, 4]
    )[:, None, None]
    expected = model.double()(normal[None]).softmax(1) * CERTAIN
    scores = Evaluator(model.float(), CPU)([tile])
    assert scores.dtype == torch.int16
    assert (scores - expected).abs().max() <= 1.0


def test_logits_are_divided_by_the_cards_temperature():
    model = StandIn(step=3.0).with_card(temperature=2.5)
    tile = np.random.default_rng(0).integers(0, 5, (3, 5, 6)).astype(np.uint8)
    expected = (model(torch.from_numpy(tile).float()[None]) / 2.5).softmax(1) * CERTAIN
    assert (Evaluator(model, CPU)([tile]) - expected).abs().max() <= 1.0


def test_tta_is_the_mean_over_the_views():
    """A model that looks to the left gives, under flips, the mean of looking left and right."""
    model = StandIn(classes=2, bands=1)
    model.forward = lambda x: torch.cat([x.roll(1, 3), torch.zeros_like(x)], dim=1) / 40
    tile = np.random.default_rng(0).integers(0, 255, (1, 8, 8)).astype(np.uint8)
    x = torch.from_numpy(tile).float()[None]
    left, right = torch.sigmoid(x.roll(1, 3) / 40), torch.sigmoid(x.roll(-1, 3) / 40)
    scores = Evaluator(model, CPU, "flip")([tile])[:, :1]
    assert (scores - CERTAIN * (left + right) / 2).abs().max() <= 1.0


def test_filling_up_a_batch_changes_nothing():
    tiles = [np.full((3, 8, 8), k, np.uint8) for k in range(3)]
    evaluator = Evaluator(StandIn(), CPU)
    assert torch.equal(evaluator(tiles, filled_to=8), evaluator(tiles))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"mean": ()}, "0 means"),
        ({"std": (1.0, 0.0, 1.0)}, "not positive"),
        ({"classes": ("one",)}, "names 1"),
    ],
)
def test_a_card_that_does_not_fit_is_explained(facts, words):
    with pytest.raises(UserError, match=words):
        Evaluator(StandIn().with_card(**facts), CPU)


def test_wrong_outputs_and_names_are_explained():
    model = StandIn()
    model.forward = lambda x: x
    with pytest.raises(UserError, match="returned"):
        Evaluator(model, CPU)([np.zeros((3, 4, 4), np.uint8)])
    with pytest.raises(UserError, match="did you mean 'flip'"):
        Evaluator(StandIn(), CPU, "flips")
    with pytest.raises(UserError, match="255 classes"):
        Evaluator(StandIn(classes=256), CPU)
    with pytest.raises(UserError, match="precision"):
        Evaluator(StandIn(), CPU, precision="int8")


def test_bfloat16_gives_nearly_the_same():
    tile = np.random.default_rng(0).integers(0, 30, (3, 8, 8)).astype(np.uint8)
    exact, rough = (Evaluator(StandIn(), CPU, precision=p)([tile]) for p in ("float32", "bfloat16"))
    assert (exact.int() - rough.int()).abs().max() < 0.05 * CERTAIN
