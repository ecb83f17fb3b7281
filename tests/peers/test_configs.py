"""The published recipes are configs that training accepts, for models that exist."""

import dataclasses
import re
from pathlib import Path

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


def test_the_network_of_the_papers_table_has_one_for_each_set() -> None:
    for place in ("potsdam", "vaihingen", "loveda"):
        tiny, small = (train_config(f"dcswin_{size}_{place}") for size in ("tiny", "small"))
        assert tiny.model.name == "dcswin_tiny"
        assert dataclasses.replace(tiny, model=small.model) == small


def test_the_documented_table_has_every_recipe_with_its_numbers() -> None:
    page = Path(__file__).parents[2] / "docs/explanation/peers.md"
    rows = [line.split(" | ") for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    documented = {name: row for row in rows if len(row) == 8 for name in re.findall(r"`(\w+)`", row[0])}
    assert set(documented) == set(RECIPES)
    for name, row in documented.items():
        config = train_config(name)
        length = config.schedule.epochs or config.schedule.steps
        rates = [float(rate) for rate in row[3].split(" / ")]
        crop, _, scales = row[7].removesuffix(" |").partition(", ")
        backbone = config.optimizer.backbone_lr
        assert float(row[1].removesuffix(" steps").replace(",", "")) == length, name
        assert int(row[2]) == config.batch_size, name
        rate = config.optimizer.lr
        assert rates == ([rate] if backbone in (None, rate) else [rate, backbone]), name
        assert float(row[4]) == config.optimizer.weight_decay, name
        assert int(crop) == config.crop, name
        assert tuple(map(float, scales.split("-"))) == config.augment.scale, name
