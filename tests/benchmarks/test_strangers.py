"""What a model takes strangers' classes for, against sets of pixels."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import strangers

import crispseg
from crispseg.data.folder import open_folder
from tests.demo.test_demo import AERIAL, saved_model
from tests.fakedata import scenes


def test_counts_and_overlap(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(4):
        image, ids = scenes.scene(rng, (40, 48), classes=2)
        scenes.save(tmp_path / "houses" / "images" / f"house{number}.png", image)
        scenes.save(tmp_path / "houses" / "masks" / f"house{number}.png", ids)
    (tmp_path / "houses" / "classes.csv").write_text("name,id\npaving,0\nbuilding,1\n")
    folder, model = open_folder(tmp_path / "houses"), crispseg.load(saved_model(tmp_path / "model", AERIAL.names))
    found = strangers.count(model, folder, ("train", "val"))
    both, either, counted = 0, 0, 0
    for record in (*folder.records("train"), *folder.records("val")):
        there, truth = crispseg.segment(folder.read_image(record), model) == 0, folder.read_mask(record) == 1
        both, either, counted = both + (there & truth).sum(), either + (there | truth).sum(), counted + there.size
    assert found["rows"] == ["paving", "building"] and np.sum(found["counts"]) == counted
    assert strangers.ious(found, AERIAL.names) == {"building": pytest.approx(both / max(either, 1))}
    assert np.sum(strangers.count(model, folder, ("train", "val"), 0.5)["counts"]) == counted
    lines = strangers.report("toy", AERIAL.names, {"here": found}).splitlines()
    assert any(line.startswith("| here | building |") for line in lines)
