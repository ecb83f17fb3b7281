"""Margins without data around a cut-out, against predictions by hand."""

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import gaps

import crispseg
from tests.demo.test_demo import AERIAL, saved_model


def test_margins_are_shown_mirrored_or_even(tmp_path):
    model = crispseg.load(saved_model(tmp_path / "model", AERIAL.names))
    cut = gaps.middle(np.random.default_rng(0).integers(0, 256, (60, 70, 3), np.uint8), 48)
    around = ((32, 32), (32, 32), (0, 0))
    shown = {
        "alone": cut,
        "mirrored": np.pad(cut, around, "reflect"),
        "even": np.where(np.pad(np.ones_like(cut), around), np.pad(cut, around), np.round(model.info.mean)),
    }
    for way, scene in shown.items():
        ids = crispseg.segment(scene.astype(np.uint8), model, precision="float32")
        expected = gaps.middle(ids, 48)
        np.testing.assert_array_equal(gaps.mapped(cut, model, way, 32), expected)
