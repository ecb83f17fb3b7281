"""The published recipes are configs that training accepts, for models that exist."""

import pytest
import torch

import crispseg.peers  # noqa: F401
from crispseg.configs import names
from crispseg.models.registry import create_model
from crispseg.train.config import train_config
from crispseg.train.schedule import learning_rate

RECIPES = [path.stem for name, path in names("config").items() if name.startswith("peers/") and path.stem != "geoseg"]


def test_each_of_the_eight_has_one() -> None:
    networks = {name.split("_")[0] for name in RECIPES}
    assert networks == {"unetformer", "abcnet", "banet", "dcswin", "pyramidmamba", "sfanet", "aerialformer", "d2ls"}
    places = {(name.split("_")[0], name.rsplit("_", 1)[-1]) for name in RECIPES}
    assert places == {(network, place) for network in networks for place in ("potsdam", "vaihingen", "loveda")}


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe(recipe: str) -> None:
    config = train_config(recipe)
    assert config.model.name is not None and recipe.startswith(config.model.name)
    with torch.device("meta"):
        create_model(config.model.name, **config.model.options)


def test_restarts_come_after_15_and_45_epochs_of_105() -> None:
    schedule = train_config("unetformer_r18_vaihingen", ["schedule.steps=1050", "schedule.epochs=null"])
    rates = [learning_rate(step, 1.0, schedule.schedule) for step in range(1050)]
    rises = [step for step in range(1, 1050) if rates[step] > rates[step - 1]]
    assert len(rises) == 2 and rises[0] in (150, 151) and rises[1] in (450, 451)
