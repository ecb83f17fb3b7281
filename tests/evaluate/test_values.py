"""Images of another kind than the model's are refused, as `crisp predict` refuses to map them."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crispseg.analysis import analyze
from crispseg.data.folder import Folder, open_folder
from crispseg.errors import UserError
from crispseg.evaluate import Settings, evaluate
from crispseg.models.base import SegmentationModel
from crispseg.predict import segment
from tests.evaluate.toy import COLOURS, Array, colour_model, labels, write_folder

rasterio = pytest.importorskip("rasterio")


def deep_folder(root: Path, pixels: Callable[[Array], Array]) -> Folder:
    """Four images with the numbers that `pixels` makes of 8-bit colours."""
    pairs = {f"site{i}": (labels(i, (40, 50)),) * 2 for i in range(4)}
    write_folder(root, pairs)
    for name, (true, _) in pairs.items():
        image = pixels(COLOURS[true])
        (root / "images" / f"{name}.png").unlink()
        facts = {"driver": "GTiff", "height": 40, "width": 50, "count": 3, "dtype": image.dtype}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
            with rasterio.open(root / "images" / f"{name}.tif", "w", **facts) as file:
                file.write(np.moveaxis(image, -1, 0))
    return open_folder(root)


def trained_on(dtype: str, factor: float) -> SegmentationModel:
    model = colour_model()
    mean, std = ([factor * x for x in numbers] for numbers in (model.info.mean, model.info.std))
    model.info = dataclasses.replace(model.info, mean=tuple(mean), std=tuple(std), dtype=dtype)
    return model


UNLIKE: list[tuple[str, float, Callable[[Array], Array], str]] = [
    ("uint8", 1, lambda x: x.astype(np.uint16) * 200, "trained on 8-bit pixels"),
    ("uint8", 1, lambda x: (x / 255).astype(np.float32), "trained on pixels around 100"),
    ("uint16", 200, lambda x: x, "uint16 pixels around 2e"),
]


@pytest.mark.parametrize(("dtype", "factor", "pixels", "reason"), UNLIKE)
@pytest.mark.parametrize("look", [evaluate, analyze])
def test_numbers_of_another_kind_are_refused(
    dtype: str, factor: float, pixels: Callable[[Array], Array], reason: str, look: Any, tmp_path: Path
) -> None:
    model, folder = trained_on(dtype, factor), deep_folder(tmp_path, pixels)
    with pytest.raises(UserError, match=rf"site\d.tif does not suit the model .*{reason}.*score it on images like"):
        look(model, folder)
    with pytest.raises(UserError, match=reason):  # as when it is asked for a map
        segment(folder.read_image(folder.records("val")[0]), model)


@pytest.mark.parametrize(
    ("dtype", "factor", "pixels"),
    [
        ("uint8", 1, lambda x: x),
        ("uint8", 1, lambda x: x.astype(np.float32)),
        ("uint16", 200, lambda x: x.astype(np.uint16) * 200),
    ],
)
def test_numbers_of_its_kind_are_scored(
    dtype: str, factor: float, pixels: Callable[[Array], Array], tmp_path: Path
) -> None:
    folder = deep_folder(tmp_path, pixels)
    assert evaluate(trained_on(dtype, factor), folder, settings=Settings(tile=0)).scores.miou == 1
