"""A small CRISP with lively gates, and a folder of small images to show it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import crispseg
from crispseg.data.folder import Folder, open_folder
from crispseg.models.base import ModelInfo, SegmentationModel
from tests.fakedata import fake_own
from tests.fakedata.folders import OWN_NAMES

CARD = ModelInfo(classes=OWN_NAMES, mean=(110.0, 120.0, 130.0), std=(60.0, 50.0, 40.0))


def make_model(name: str = "crisp_nano", **options: Any) -> SegmentationModel:
    """Gates far from their start, each its own value, so that switching them off matters."""
    torch.manual_seed(1)
    model = crispseg.create_model(name, 3, 3, **options)
    for key, parameter in model.named_parameters():
        if ".dco." in key:
            torch.nn.init.uniform_(parameter, -0.5, 1.5)
    model.info = CARD
    return model.eval()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Six images of 73 x 87 px in three classes, with colours."""
    return open_folder(fake_own(tmp_path_factory.mktemp("data") / "sites", colour=True, size=(73, 87)))


@pytest.fixture(scope="session")
def crisp() -> SegmentationModel:
    return make_model()
