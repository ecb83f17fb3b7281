import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crispseg.data.dataset import SegmentationDataset
from crispseg.data.folder import open_folder
from crispseg.metrics import TemperatureFit
from crispseg.predict.segment import segment
from crispseg.train.distributed import Processes
from crispseg.train.validate import flat_scores, predict, validate
from tests.predict.standins import StandIn

CPU = Processes(torch.device("cpu"))


@given(height=st.integers(1, 40), width=st.integers(1, 40), tile=st.sampled_from([0, 8, 16]), data=st.data())
def test_pixelwise_network_gives_the_same_in_windows(height, width, tile, data):
    overlap = data.draw(st.integers(0, max(tile - 1, 0)))
    image = torch.randn(3, height, width)
    found = predict(lambda x: 5 * x, image, tile, overlap, 3, batch=3, device=torch.device("cpu"))
    two_best = image.topk(2, dim=0).values
    clear = two_best[0] - two_best[1] > 1e-3  # in whole numbers of probability
    assert torch.equal(found[clear], image.argmax(0)[clear])


@pytest.mark.parametrize("tile", [0, 32, 64])
def test_the_map_is_that_of_predict(tile):
    """A network that looks around shows where windows begin and end, and how they are blended."""
    model = StandIn(reach=5)
    image = np.random.default_rng(0).integers(0, 40, (90, 70, 3)).astype(np.uint8)
    raw = torch.from_numpy(image).permute(2, 0, 1).float()
    found = predict(model, raw, tile, tile // 4, 5, batch=3, device=torch.device("cpu"))
    if tile:
        assert np.array_equal(found.numpy(), segment(image, model, tile=tile, overlap=tile // 4))
    else:
        assert torch.equal(found, model(raw[None])[0].argmax(0))


def test_beside_gaps_the_map_is_that_of_predict(tmp_path):
    """Training's images show a network there what `crisp predict` shows it."""
    rasterio = pytest.importorskip("rasterio")
    pixels = np.random.default_rng(0).integers(1, 40, (3, 60, 50)).astype(np.uint8)
    pixels[:, :21] = 0
    pixels[1, 30:34, 20:30] = 0  # only one band
    for part, values, facts in (("images", pixels, {"nodata": 0}), ("masks", pixels[:1] % 2, {})):
        (tmp_path / part).mkdir()
        size = {"count": len(values), "height": 60, "width": 50, "dtype": "uint8"}
        for name in ("a", "b"):
            with rasterio.open(tmp_path / part / f"{name}.tif", "w", "GTiff", **size, **facts) as file:
                file.write(values)
    model = StandIn(reach=5).with_card(mean=(1.0, 39.0, 2.0))
    dataset = SegmentationDataset(open_folder(tmp_path), "val")
    dataset.show_means(model.info.mean)
    image, mask, _ = next(iter(dataset))
    assert (image[1, 30:34, 20:30] == 39).all() and (mask[30:34] != 255).all()
    normalised = model.info.normalisation()(image.float())
    found = predict(model, normalised, 64, 16, 5, batch=1, device=torch.device("cpu")).numpy()
    mapped = segment(str(tmp_path / "images" / "a.tif"), model, tile=64, overlap=16)
    assert (mapped[:21] == 255).all() and (mask[:21] == 255).all()
    np.testing.assert_array_equal(found[21:], mapped[21:])


def test_logits_of_half_precision_are_compared_in_full():
    """In bfloat16 their softmax would be a tie."""
    image = torch.tensor([0.0, 2**-9])[:, None, None].expand(2, 8, 8)
    assert (predict(lambda x: x.bfloat16(), image, 0, 0, 2, batch=1, device=torch.device("cpu")) == 1).all()


def test_logits_are_noted_where_they_lie():
    """A network that gives back what it sees: the noted parts are those parts of the image, and cover it."""
    image = torch.randn(3, 50, 45)
    seen = torch.zeros(50, 45)

    def note(logits, top, left):
        height, width = logits.shape[1:]
        assert torch.equal(logits, image[:, top : top + height, left : left + width])
        seen[top : top + height, left : left + width] += 1

    predict(lambda x: x, image, 32, 8, 3, batch=2, device=torch.device("cpu"), note=note)
    assert seen.min() >= 1


def test_scores_are_those_of_one_matrix(folder):
    data = open_folder(folder)
    dataset = SegmentationDataset(data, "val")
    found = validate(
        lambda x: torch.stack([90 - x.mean(1), x.mean(1) - 90], 1),
        dataset,
        CPU,
        batch=2,
        samples=3,
        boundaries=True,
    )
    (record,) = data.records("val")
    image, truth = data.read_image(record), data.read_mask(record)
    guess, valid = image.mean(-1) > 90, truth != 255
    hits = [(guess == c) & (truth == c) & valid for c in (0, 1)]
    unions = [((guess == c) | (truth == c)) & valid for c in (0, 1)]
    expected = np.mean([h.sum() / u.sum() for h, u in zip(hits, unions, strict=True)])
    assert found.scores["mIoU"] == expected
    assert "BF@3px" in found.scores
    fit = TemperatureFit()
    away = torch.from_numpy(image.mean(-1) - 90)
    fit.update(torch.stack([-away, away]), torch.from_numpy(truth))
    assert found.temperature == pytest.approx(fit.best(), rel=1e-5) and found.temperature != 1
    bare = validate(lambda x: x[:, :2], dataset, CPU, batch=2)
    assert bare.shown == [] and "BF@3px" not in bare.scores
    (shown,) = found.shown
    assert shown.name == record.name and (shown.image == image).all() and (shown.prediction == guess).all()
    flat = flat_scores(found.scores, "val/")
    assert flat["val/mIoU"] == expected and "val/IoU/class_1" in flat and not any("precision" in k for k in flat)
