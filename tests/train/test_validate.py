import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from crispseg.data.dataset import SegmentationDataset
from crispseg.data.folder import open_folder
from crispseg.train.distributed import Processes
from crispseg.train.validate import flat_scores, predict, starts, validate

CPU = Processes(torch.device("cpu"))


@given(length=st.integers(1, 300), tile=st.integers(1, 80), overlap=st.integers(0, 79))
def test_windows_cover_everything_and_stay_inside(length, tile, overlap):
    tile = min(tile, length)
    found = starts(length, tile, min(overlap, tile - 1))
    covered = {position for start in found for position in range(start, start + tile)}
    assert covered == set(range(length))
    assert len(set(found)) == len(found)


@given(height=st.integers(1, 40), width=st.integers(1, 40), tile=st.sampled_from([0, 8, 16]), data=st.data())
def test_pixelwise_network_gives_the_same_in_windows(height, width, tile, data):
    overlap = data.draw(st.integers(0, max(tile - 1, 0)))
    image = torch.randn(3, height, width)
    found = predict(lambda x: 5 * x, image, tile, overlap, 3, batch=3, device=torch.device("cpu"))
    assert torch.equal(found, image.argmax(0))


def test_overlapping_windows_are_averaged():
    """Two windows disagree on the middle; the surer one wins."""
    calls = iter([[0.9, 0.1], [0.4, 0.6]])

    def network(x):
        odds = torch.tensor([next(calls) for _ in x]).log()
        return odds[:, :, None, None].expand(-1, -1, *x.shape[-2:])

    found = predict(network, torch.zeros(1, 1, 6), 4, 2, 2, batch=1, device=torch.device("cpu"))
    assert found.tolist() == [[0, 0, 0, 0, 1, 1]]


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
    (shown,) = found.shown
    assert shown.name == record.name and (shown.image == image).all() and (shown.prediction == guess).all()
    flat = flat_scores(found.scores, "val/")
    assert flat["val/mIoU"] == expected and "val/IoU/class_1" in flat and not any("precision" in k for k in flat)
