"""Scores of models whose answers are known, whatever the windows, views, batches and label variants."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import crispseg
from crispseg.data.folder import Folder, open_folder
from crispseg.errors import UserError
from crispseg.evaluate import Evaluation, Settings, evaluate
from crispseg.evaluate.conditions import settle
from crispseg.evaluate.run import calibrate, predict
from crispseg.evaluate.spectrum import backbone_blocks, spread
from crispseg.files import write_json
from crispseg.metrics import BoundaryCounts, SpectralProbe
from crispseg.models.base import ModelInfo
from crispseg.predict import segment
from crispseg.predict.evaluate import Evaluator
from crispseg.predict.plan import plan_windows
from crispseg.raster.source import ArraySource, read_reflected
from crispseg.raster.source import Window as Place
from tests.evaluate.conftest import Pairs, total
from tests.evaluate.toy import COLOURS, MEAN, NAMES, STD, blur_model, colour_model, counted, labels, write_folder
from tests.fakedata.scenes import erode


def counts(evaluation: Evaluation) -> np.ndarray:
    return evaluation.confusion.counts.numpy()


def test_known_scores(folder: Folder, pairs: Pairs) -> None:
    evaluation = evaluate(colour_model(), folder, "val", settings=Settings(tile=32, overlap=8))
    matrix = total(pairs)
    np.testing.assert_array_equal(counts(evaluation), matrix)
    hit, true, predicted = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    assert evaluation.headline["mIoU"] == pytest.approx(np.mean(hit / (true + predicted - hit)))
    assert evaluation.headline["mF1"] == pytest.approx(np.mean(2 * hit / (true + predicted)))
    assert evaluation.headline["OA"] == pytest.approx(hit.sum() / matrix.sum())
    edges = BoundaryCounts(3, 3, 3)
    for shown, labelled in pairs.values():
        edges.update(shown, labelled)
    assert evaluation.headline["BF@3px"] == edges.scores().mbf
    assert evaluation.headline["band mIoU@3px"] == edges.scores().band_miou


@settings(max_examples=15)
@given(
    tile=st.sampled_from([0, *range(12, 120)]),
    share=st.floats(0, 0.7),
    tta=st.sampled_from(["none", "flip", "d4"]),
    batch=st.sampled_from([None, 1, 3]),
)
def test_windows_views_and_batches_change_nothing_for_a_model_of_one_pixel(
    folder: Folder, pairs: Pairs, tile: int, share: float, tta: str, batch: int | None
) -> None:
    chosen = Settings(tile=tile, overlap=int(share * tile), tta=tta, batch_size=batch, worst=0)
    evaluation = evaluate(colour_model(), folder, "val", settings=chosen)
    np.testing.assert_array_equal(counts(evaluation), total(pairs))
    assert [image.name for image in evaluation.images] == list(pairs)
    for image, (shown, true) in zip(evaluation.images, pairs.values(), strict=True):
        np.testing.assert_array_equal(image.confusion.counts.numpy(), counted(shown, true))


@pytest.mark.parametrize(("tile", "overlap"), [(32, 8), (24, 12), (40, 0), (64, 30)])
def test_blending_is_the_weighted_mean_of_windows(pairs: Pairs, folder: Folder, tile: int, overlap: int) -> None:
    """Against a float64 loop over windows, each shown to the model by itself."""
    model = blur_model()
    shown = COLOURS[pairs["site0"][0]]
    conditions = settle(Settings(tile=tile, overlap=overlap), folder, "val")
    plan = plan_windows(*shown.shape[:2], conditions.tile, conditions.overlap)
    source = ArraySource(shown, MEAN)
    classes, confidence = predict(Evaluator(model, torch.device("cpu")), source, plan, None, lambda: None)

    total = np.zeros((3, *shown.shape[:2]))
    weight = np.zeros(shown.shape[:2])
    for i, top in enumerate(plan.rows.starts):
        for j, left in enumerate(plan.cols.starts):
            window = read_reflected(source, Place(top, left, plan.rows.tile, plan.cols.tile)).values
            x = (torch.from_numpy(window).double() - torch.tensor(MEAN).double()[:, None, None]) / torch.tensor(STD)[
                :, None, None
            ]
            with torch.no_grad():
                probabilities = model.double()(x[None])[0].softmax(0).numpy()
            for y in range(max(0, -top), min(plan.rows.tile, shown.shape[0] - top)):
                for z in range(max(0, -left), min(plan.cols.tile, shown.shape[1] - left)):
                    w = float(plan.rows.weights[i, y]) * float(plan.cols.weights[j, z])
                    total[:, top + y, left + z] += w * probabilities[:, y, z]
                    weight[top + y, left + z] += w
    model.float()
    mean = total / weight
    ordered = np.sort(mean, axis=0)
    clear = ordered[-1] - ordered[-2] > 1e-3
    assert clear.mean() > 0.95
    np.testing.assert_array_equal(classes[clear], mean.argmax(0)[clear])
    np.testing.assert_allclose(confidence / 254, mean.max(0), atol=0.003)


def test_whole_images_are_shown_whole(pairs: Pairs, folder: Folder) -> None:
    model = blur_model()
    evaluation = evaluate(model, folder, "val", settings=Settings(tile=0))
    expected = np.zeros((3, 3), np.int64)
    for shown, true in pairs.values():
        x = (torch.from_numpy(COLOURS[shown]).float() - torch.tensor(MEAN)) / torch.tensor(STD)
        with torch.no_grad():
            expected += counted(model(x.movedim(-1, 0)[None])[0].argmax(0).numpy(), true)
    assert np.abs(counts(evaluation) - expected).sum() <= 4  # a tie may fall either way
    assert "whole images" in evaluation.conditions.line


def test_what_is_scored_is_the_map_that_predict_makes(pairs: Pairs, folder: Folder) -> None:
    model = blur_model()
    evaluation = evaluate(model, folder, "val", settings=Settings(tile=32, overlap=16, tta="flip"))
    expected = np.zeros((3, 3), np.int64)
    for shown, true in pairs.values():
        expected += counted(segment(COLOURS[shown], model, tile=32, overlap=16, tta="flip", device="cpu"), true)
    np.testing.assert_array_equal(counts(evaluation), expected)


def test_a_model_stays_in_the_mode_it_was_in(folder: Folder) -> None:
    model = colour_model().train()
    evaluate(model, folder, "val", settings=Settings(tile=0))
    assert model.training


def test_calibration_of_a_known_confidence(folder: Folder, pairs: Pairs) -> None:
    evaluation = evaluate(colour_model(confidence=0.7), folder, "val", settings=Settings(tile=32, overlap=8))
    matrix = total(pairs)
    accuracy = np.trace(matrix) / matrix.sum()
    assert evaluation.reliability.ece == pytest.approx(abs(accuracy - 0.7), abs=1 / 254)
    assert evaluation.reliability.count.sum() == matrix.sum()


def test_calibration_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    confidence = torch.randint(0, 255, (40, 30), dtype=torch.uint8, generator=generator)
    right, valid = (torch.rand(40, 30, generator=generator) < 0.7 for _ in range(2))
    whole = calibrate(confidence, right, valid)
    monkeypatch.setattr("crispseg.evaluate.run._CHUNK", 101)
    parts = calibrate(confidence, right, valid)
    assert torch.equal(whole.sums["count"], parts.sums["count"]) and whole.ece() == pytest.approx(parts.ece())
    assert int(whole.sums["count"].sum()) == int(valid.sum())


def test_boundaries_are_scored_on_their_own_labels(tmp_path: Path) -> None:
    """Eroded labels for the confusion matrix, full ones for the boundaries, as the protocol says."""
    from PIL import Image

    true = labels(3, (60, 60))
    root = write_folder(tmp_path / "data", {"site0": (true, true)}, split="test")
    (root / "masks_eroded").mkdir()
    Image.fromarray(erode(true)).save(root / "masks_eroded" / "site0.png")
    plain = open_folder(root).protocol
    protocol = dataclasses.replace(plain, eval_labels="eroded")
    evaluation = evaluate(colour_model(), open_folder(root, protocol=protocol), settings=Settings(tile=0))
    assert evaluation.conditions.split == "test"
    assert counts(evaluation).sum() == (erode(true) != 255).sum()
    assert evaluation.boundary is not None
    full = BoundaryCounts(3)
    full.update(true, true)
    assert int(full.contours[:, 1].sum()) > 0
    assert evaluation.images[0].boundary is not None
    assert torch.equal(evaluation.images[0].boundary.contours, full.contours)
    assert "eroded labels" in evaluation.conditions.line and "boundaries on full labels" in evaluation.conditions.line


def test_without_labels_for_boundaries_they_are_left_out(tmp_path: Path) -> None:
    true = labels(3, (40, 40))
    root = write_folder(tmp_path / "data", {"site0": (true, true)})
    (root / "masks").rename(root / "masks_eroded")
    opened = open_folder(root, classes=root / "classes.csv")
    protocol = dataclasses.replace(opened.protocol, eval_labels="eroded", train_labels="eroded")
    evaluation = evaluate(colour_model(), open_folder(root, protocol=protocol), "val", settings=Settings(tile=0))
    assert evaluation.boundary is None and "BF@3px" not in evaluation.headline
    assert any("no full labels" in note for note in evaluation.notes)


@pytest.mark.parametrize(
    ("dtype", "filler", "nodata"),
    [("float32", np.nan, None), ("float32", -9999, -9999), ("float32", 3e38, None), ("uint8", 0, 0), ("uint8", 7, 7)],
)
def test_pixels_without_data_are_not_scored(dtype: str, filler: float, nodata: float | None, tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio")
    true = labels(5, (40, 50))
    root = write_folder(tmp_path / "data", {"site0": (true, true)})
    pixels = COLOURS[true].astype(dtype)
    pixels[10:20, 10:30] = filler
    unsure = np.zeros(true.shape, bool)
    unsure[10:20, 10:30] = True
    if dtype == "float32":
        pixels[30:35, 10:30, 1] = filler
        unsure[30:35, 10:30] = True
    (root / "images" / "site0.png").unlink()
    profile = {"driver": "GTiff", "height": 40, "width": 50, "count": 3, "dtype": dtype, "nodata": nodata}
    with pytest.warns(), rasterio.open(root / "images" / "site0.tif", "w", **profile) as file:
        file.write(np.moveaxis(pixels, 2, 0))
    evaluation = evaluate(colour_model(), open_folder(root), settings=Settings(tile=32, overlap=8))
    true[unsure] = 255
    np.testing.assert_array_equal(counts(evaluation), counted(np.where(true == 255, 0, true), true))


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_a_scene_with_gaps_is_scored_as_predict_maps_it(dtype: str, tmp_path: Path) -> None:
    """Also where single bands hold the filler: both fill these with the band's mean."""
    rasterio = pytest.importorskip("rasterio")
    true = labels(6, (48, 60))
    root = write_folder(tmp_path / "data", {"site0": (true, true)})
    pixels = COLOURS[true].astype(dtype)
    draws = np.random.default_rng(3)
    pixels[draws.random(pixels.shape) < 0.05] = 0
    pixels[:15, :25] = 0
    (root / "images" / "site0.png").unlink()
    scene = root / "images" / "site0.tif"
    facts = {"driver": "GTiff", "height": 48, "width": 60, "count": 3, "dtype": dtype, "nodata": 0}
    place = {"crs": "EPSG:32632", "transform": rasterio.Affine(1, 0, 400_000, 0, -1, 5_000_000)}
    with rasterio.open(scene, "w", **facts, **place) as file:
        file.write(np.moveaxis(pixels, 2, 0))
    model = blur_model()
    windows = {"tile": 32, "overlap": 16}
    chosen = {"precision": "float32", "device": "cpu", "resolution": "scene"}
    crispseg.predict(str(scene), str(tmp_path / "map.tif"), model, **windows, **chosen)
    with rasterio.open(tmp_path / "map.tif") as file:
        mapped = file.read(1)
    lacking = (pixels == 0).all(2)
    np.testing.assert_array_equal(mapped == 255, lacking)
    judged = ~lacking if dtype == "uint8" else (pixels != 0).all(2)
    folder = open_folder(root, split={"site0": "val"})
    evaluation = evaluate(model, folder, "val", settings=Settings(**windows))
    truth = np.where(judged, true, np.uint8(255))
    np.testing.assert_array_equal(counts(evaluation), counted(np.where(judged, mapped, 0), truth))


def test_spectral_ratio_of_every_block(perfect: Folder) -> None:
    torch.manual_seed(1)
    model = crispseg.create_model("crisp_nano", 3, 3).eval()
    model.info = ModelInfo(classes=NAMES, mean=MEAN, std=STD)
    evaluation = evaluate(model, perfect, settings=Settings(tile=32, overlap=0, spectrum_images=2, worst=0))
    assert [bool(image.spectrum) for image in evaluation.images] == [True, True, False]

    expected: dict[str, list[float]] = {name: [] for name in backbone_blocks(model)}
    for record in perfect.records("val")[:2]:
        pixels = perfect.read_image(record)[4:36, 9:41]  # the middle 32 px of 40 x 50
        x = (torch.tensor(pixels).float() - torch.tensor(MEAN)) / torch.tensor(STD)
        with SpectralProbe(backbone_blocks(model), to_map=lambda n, i, out: out.permute(0, 3, 1, 2)) as probe:
            model(x.movedim(-1, 0)[None])
        for name, ratio in probe.mean.ratios().items():
            expected[name].append(ratio)
    assert len(expected) == sum(len(stage.blocks) for stage in model.backbone.layers)
    assert evaluation.spectrum == pytest.approx({name: np.mean(ratios) for name, ratios in expected.items()}, rel=1e-3)
    assert evaluate(colour_model(), perfect, settings=Settings(tile=0)).spectrum == {}


@given(images=st.integers(1, 200), wanted=st.integers(0, 50))
def test_spread_is_even(images: int, wanted: int) -> None:
    chosen = sorted(spread(images, wanted))
    assert len(chosen) == min(images, wanted)
    assert not chosen or (chosen[0] == 0 and chosen[-1] < images)
    gaps = np.diff([*chosen, images]) if chosen else np.zeros(1)
    assert gaps.max() - gaps.min() <= 1


def test_bad_fits(folder: Folder, perfect: Folder) -> None:
    with pytest.raises(UserError, match="takes 4 bands, but the images of .* have 3"):
        evaluate(colour_model(bands=4), folder, "val")
    with pytest.raises(UserError, match=r"predicts 2 classes \(a, b\), but protocol meadows/own3 has 3 \(meadow"):
        evaluate(colour_model(classes=("a", "b")), folder, "val")
    with pytest.raises(UserError, match="numbers its classes roof, water, meadow, but protocol"):
        evaluate(colour_model(classes=("roof", "water", "meadow")), folder, "val")
    with pytest.raises(UserError, match="the train split of .* is empty; it has val"):
        evaluate(colour_model(), folder, "train")
    renamed = evaluate(colour_model(classes=("grass", "sea", "house")), perfect, settings=Settings(tile=0))
    assert any("calls its classes grass, sea, house" in note for note in renamed.notes)
    assert renamed.headline["mIoU"] == 1.0


def test_other_bands_than_the_models_are_noted(perfect: Folder) -> None:
    model = colour_model()
    model.info = dataclasses.replace(model.info, bands=("red", "green", "blue"))
    assert not any("bands" in note for note in evaluate(model, perfect, settings=Settings(tile=0)).notes)
    write_json(perfect.root / "dataset.json", {"bands": ["near_infrared", "red", "green"]})
    (note,) = (note for note in evaluate(model, perfect, settings=Settings(tile=0)).notes if "bands" in note)
    assert note == "The model was trained on red, green, blue, but the bands here are near_infrared, red, green."


def test_an_unreadable_image_is_named(tmp_path: Path) -> None:
    true = labels(0, (40, 40))
    root = write_folder(tmp_path / "data", {"site0": (true, true), "site1": (true, true)})
    opened = open_folder(root)
    path = root / "images" / "site1.png"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="site1.png is cut short"):
        evaluate(colour_model(), opened, settings=Settings(tile=0))
