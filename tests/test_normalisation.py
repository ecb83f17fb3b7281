"""Raw pixels to a network's input: the same numbers from the card, in place, and inside an exported model."""

import torch

from crispseg.export.deployed import Deployed
from crispseg.models.base import ModelInfo, SegmentationModel
from crispseg.normalisation import Normalisation

MEAN, STD = (100.0, 50.0), (10.0, 20.0)
PIXELS = torch.tensor([[110.0, 90.0], [50.0, 90.0]])[:, :, None]  # (bands, H, 1)
TRUTH = torch.tensor([[1.0, -1.0], [0.0, 2.0]])[:, :, None]


def test_less_the_mean_over_the_spread():
    card = ModelInfo(mean=MEAN, std=STD)
    for normalisation in (Normalisation(MEAN, STD), card.normalisation()):
        assert torch.equal(normalisation(PIXELS), TRUTH)
        assert torch.equal(normalisation.apply_(PIXELS.clone()), TRUTH)


def test_an_exported_model_has_the_cards_inside():
    model = SegmentationModel()
    model.info = ModelInfo(mean=MEAN, std=STD)
    deployed = Deployed(torch.nn.Identity(), model, "logits", torch.float32)
    assert isinstance(deployed.normalise, Normalisation)
    assert torch.equal(deployed(PIXELS[None]), TRUTH[None])
    assert torch.equal(deployed.double()(PIXELS[None].double()), TRUTH[None])  # goes along when the model is cast
