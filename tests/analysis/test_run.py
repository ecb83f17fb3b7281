"""The numbers of an analysis, against the same model asked image by image."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from crispseg.analysis import Analysis, Settings, analyze, gates_off
from crispseg.analysis.mixing import at_its_mean
from crispseg.cli.main import main
from crispseg.data.folder import Folder, open_folder
from crispseg.data.gaps import find_gaps
from crispseg.errors import UserError
from crispseg.metrics import SpectralProbe
from crispseg.models.base import SegmentationModel
from tests.analysis.conftest import CARD, make_model
from tests.evaluate.toy import colour_model, counted, labels, write_folder
from tests.fakedata import fake_own, fake_potsdam

CPU = {"device": "cpu"}


@pytest.fixture(scope="module")
def analysis(crisp: SegmentationModel, folder: Folder) -> Analysis:
    return analyze(crisp, folder, "train", settings=Settings(images=0, pictures=2), source="here", **CPU)


def shown(folder: Folder, split: str) -> list[tuple[torch.Tensor, np.ndarray]]:
    """Normalised images (1, 3, H, W) and their masks."""
    mean, std = np.array(CARD.mean), np.array(CARD.std)
    pairs = []
    for record in folder.records(split):
        image = (folder.read_image(record) - mean) / std
        pairs.append((torch.from_numpy(image).float().permute(2, 0, 1)[None], folder.read_mask(record)))
    return pairs


def test_confusion_of_both_variants(analysis: Analysis, crisp: SegmentationModel, folder: Folder) -> None:
    expected = {label: np.zeros((3, 3), np.int64) for label in ("as trained", "gates off", "y^ at its mean")}
    with torch.no_grad():
        for image, truth in shown(folder, "train"):
            expected["as trained"] += counted(crisp(image)[0].argmax(0).numpy(), truth)
            with gates_off(crisp):
                expected["gates off"] += counted(crisp(image)[0].argmax(0).numpy(), truth)
            with at_its_mean(crisp):
                expected["y^ at its mean"] += counted(crisp(image)[0].argmax(0).numpy(), truth)
    assert list(analysis.variants) == list(expected)
    for label, matrix in expected.items():
        # the last bit of a logit may differ with the layout of the image
        assert np.abs(analysis.variants[label].mistakes.all - matrix).sum() <= 4
    assert not np.array_equal(*(analysis.variants[label].mistakes.all for label in ("as trained", "gates off")))
    assert set(analysis.liveliness["as trained"]) == set(analysis.variants["as trained"].spectrum.mixer)


def test_spectrum_is_that_of_the_metrics(analysis: Analysis, crisp: SegmentationModel, folder: Folder) -> None:
    blocks = {
        f"stage {s} block {b}": block
        for s, stage in enumerate(crisp.backbone.layers, 1)
        for b, block in enumerate(stage.blocks, 1)
    }
    mixers = {name: block.attn for name, block in blocks.items()}
    spectrum = analysis.variants["as trained"].spectrum
    assert spectrum is not None
    for modules, found in ((mixers, spectrum.mixer), (blocks, spectrum.block)):
        with torch.no_grad(), SpectralProbe(modules, to_map=lambda name, inputs, out: out.movedim(-1, 1)) as probe:
            for image, _ in shown(folder, "train"):
                crisp(image)
        means = {name: values.mean() for name, values in found.items()}
        assert means == pytest.approx(probe.mean.ratios(), rel=1e-4)
    off = analysis.variants["gates off"].spectrum
    assert off is not None
    assert not np.allclose(spectrum.mixer["stage 1 block 1"], off.mixer["stage 1 block 1"], rtol=1e-3)


def test_prototypes_add_up_to_the_predictions(analysis: Analysis) -> None:
    assert analysis.prototypes is not None and analysis.prototypes.images == len(analysis.names)
    pixels = analysis.variants["as trained"].mistakes.all.sum(0)  # nothing is ignored in these masks
    np.testing.assert_array_equal(analysis.prototypes.pixels.sum(1), pixels)


def test_looks_hold_the_image_and_what_was_said_of_it(analysis: Analysis, folder: Folder) -> None:
    assert len(analysis.looks) == 2
    record = next(r for r in folder.records("train") if r.name == analysis.looks[1].name)
    look = analysis.looks[1]
    np.testing.assert_array_equal(look.image, folder.read_image(record))
    np.testing.assert_array_equal(look.truth, folder.read_mask(record))
    assert look.won is not None and look.won.shape == look.truth.shape == (73, 87) and look.won.max() < 3
    assert list(look.activity["gates off"]) == [f"stage {s} block {b}" for s, b in ((1, 2), (2, 2), (3, 4), (4, 2))]


def test_conditions_are_told(analysis: Analysis, folder: Folder) -> None:
    line = analysis.conditions.line
    assert f"#{folder.protocol.hash}" in line and "train, 4 of 4 images, whole, each" in line
    values = json.loads(json.dumps(analysis.to_dict(), allow_nan=False))
    assert values["conditions"]["line"] == line and values["source"] == "here"
    assert len(values["variants"]["as trained"]["spectrum"]["mixer"]["stage 3 block 4"]["images"]) == 4
    assert any("training images" in note for note in analysis.notes)


def test_large_images_are_cut_to_their_middle(crisp: SegmentationModel, folder: Folder) -> None:
    found = analyze(crisp, folder, "val", settings=Settings(images=1, pictures=1, limit=40), **CPU)
    look, record = found.looks[0], folder.records("val")[0]
    assert look.window == (16, 23) and look.truth.shape == (40, 40)
    np.testing.assert_array_equal(look.truth, folder.read_mask(record)[16:56, 23:63])
    np.testing.assert_array_equal(look.image, folder.read_image(record)[16:56, 23:63])
    assert (
        "larger ones (1) cut to their middle 40 px" in found.conditions.line
        and "1 of 2 images" in found.conditions.line
    )


def test_against_a_model_of_another_kind(crisp: SegmentationModel, folder: Folder) -> None:
    """UPerNet without DCO, of the same data: no gates of its own, no prototypes, but spectra and errors."""
    other = make_model("vssd_nano_upernet", channels=16).train()
    found = analyze(crisp, folder, "val", against=other, settings=Settings(pictures=1), **CPU)
    assert list(found.variants) == ["as trained", "gates off", "y^ at its mean", "against"]
    assert list(found.gates) == ["as trained"]
    assert other.training and not crisp.training  # as they were
    spectrum = found.variants["against"].spectrum
    assert spectrum is not None and len(spectrum.mixer) == 10
    assert any("vssd_nano_upernet was made without DCO" in note for note in found.notes)
    turned = analyze(other, folder, "val", settings=Settings(pictures=0), **CPU)
    assert turned.prototypes is None and not turned.looks
    assert list(turned.variants) == ["as trained", "y^ at its mean"]
    assert any("has no prototypes" in note for note in turned.notes)


def test_every_model_sees_images_as_it_was_trained_to(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exported file normalises by itself; gaps are filled by each model's own means."""
    model, other = colour_model(), colour_model()
    other.info = dataclasses.replace(other.info, mean=(10.0, 20.0, 30.0))
    other.normalises = True
    saw: dict[SegmentationModel, torch.Tensor] = {}
    for each in (model, other):
        forward = each.forward
        each.forward = lambda x, each=each, forward=forward: (saw.update({each: x}), forward(x))[1]
    image = np.full((73, 87, 3), 50.0, np.float32)
    image[:9, :, 1] = np.nan
    monkeypatch.setattr(Folder, "read_gapped", lambda *_: find_gaps(image, None))
    analyze(model, folder, "val", against=other, settings=Settings(images=1, pictures=0), **CPU)
    mean, std = model.info.mean, model.info.std
    torch.testing.assert_close(saw[model][0, :, 20, 0], (50 - torch.tensor(mean)) / torch.tensor(std))
    assert saw[model][0, 1, 0, 0] == 0
    assert saw[other][0, :, 0, 0].tolist() == [50, 20, 50]


def test_a_model_without_a_backbone_still_has_errors(tmp_path: Path) -> None:
    truth = labels(1, (40, 50))
    data = open_folder(write_folder(tmp_path / "d", {"a": (np.where(truth == 1, 2, truth).astype(np.uint8), truth)}))
    found = analyze(colour_model(), data, "val", **CPU)
    assert found.variants["as trained"].spectrum is None and not found.gates
    water = int((truth == 1).sum())
    assert found.variants["as trained"].mistakes.largest()[0][:3] == (1, 2, water)
    assert any("no VSSD backbone" in note for note in found.notes)


def test_boundaries_are_judged_on_full_labels(tmp_path: Path) -> None:
    """Potsdam's paper protocol scores eroded labels, which have no boundaries."""
    raw, out = fake_potsdam(tmp_path / "raw"), tmp_path / "potsdam"
    assert main(["prepare", "potsdam", "--source", str(raw), "--out", str(out)]) == 0
    data = open_folder(out, protocol="potsdam/paper5")
    classes = data.protocol.classes
    found = analyze(colour_model(classes=classes), data, "test", settings=Settings(images=2), **CPU)
    assert found.conditions.labels == "full" and "full labels" in found.conditions.line
    assert found.variants["as trained"].mistakes.band.sum() > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(images=-1), "cannot look at -1 images"),
        (Settings(limit=8), "at least 32 px, not 8"),
        (Settings(band=0), "at least 1 px wide"),
        (Settings(focus="rooof"), "unknown class 'rooof'; did you mean 'roof'"),
        (Settings(cutoff=2.0), "cut-off 2 must lie between"),
    ],
)
def test_settings_are_checked(crisp: SegmentationModel, folder: Folder, settings: Settings, message: str) -> None:
    with pytest.raises(UserError, match=message):
        analyze(crisp, folder, "val", settings=settings, **CPU)


def test_misfits_are_refused(crisp: SegmentationModel, folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="predicts 2 classes"):
        analyze(colour_model(classes=("a", "b")), folder, "val", **CPU)
    with pytest.raises(UserError, match="predicts 2 classes"):
        analyze(crisp, folder, "val", against=colour_model(classes=("a", "b")), **CPU)
    with pytest.raises(UserError, match="test split .* is empty"):
        analyze(crisp, folder, "test", **CPU)
    bare = open_folder(fake_own(tmp_path / "bare", colour=True))
    for record in bare.records("val"):
        record.masks.clear()  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="have no full labels to find errors with"):
        analyze(crisp, bare, "val", **CPU)
