"""Two views of a picture: how they are drawn, and what they lose, against loops."""

import numpy as np
import pytest
import torch

from crispseg.pretrain.config import ViewsConfig, config_from
from crispseg.pretrain.feed import Feed, open_sets, share_out
from crispseg.pretrain.step import views_loss
from crispseg.train.distributed import Processes
from tests.pretrain import toys


def by_loops(x, how):
    """The three terms as they are written in the paper, in float64."""
    first, second = x[::2].double().numpy(), x[1::2].double().numpy()
    n, d = first.shape
    alike = sum(((a - b) ** 2).sum() for a, b in zip(first, second, strict=True)) / (n * d)
    varied, apart = 0.0, 0.0
    for z in (first, second):
        mean = z.mean(0)
        covariance = sum(np.outer(row - mean, row - mean) for row in z) / (n - 1)
        for i in range(d):
            varied += max(0.0, 1 - np.sqrt(covariance[i, i] + 1e-4)) / d / 2
            apart += sum(covariance[i, j] ** 2 for j in range(d) if j != i) / d
    return (how.alike * alike + how.varied * varied + how.apart * apart) / how.alike


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("how", [ViewsConfig(), ViewsConfig(alike=2.0, varied=1.0, apart=0.5)])
def test_the_loss(scale, how):
    x = scale * torch.randn(14, 5)
    assert views_loss(x, how).item() == pytest.approx(by_loops(x, how), rel=1e-5)


def test_one_pair_is_no_reason_to_fail():
    assert torch.isfinite(views_loss(torch.randn(2, 5), ViewsConfig()))


def test_embeddings_that_are_all_the_same_cost():
    same, varied = torch.ones(64, 8), torch.randn(32, 8).repeat_interleave(2, 0)
    assert views_loss(same, ViewsConfig()).item() == pytest.approx(0.99, abs=1e-3)  # each view lacks half of it
    assert views_loss(varied, ViewsConfig()).item() < 0.3


@pytest.fixture
def feed(tmp_path):
    folder = toys.class_folders(tmp_path / "stripes", count=4)
    one = {"path": str(folder), "labels": False, "side": 32}
    config = config_from(toys.settings(tmp_path / "run", one, batch_size=6))
    sets = open_sets(config)
    share_out(sets, 6, 1)
    return Feed(sets, config, Processes(torch.device("cpu")), ["stripes"])


def test_neighbours_are_one_picture_changed_differently(feed):
    made, again = ([batch.images for batch in feed.from_step(0, 4, 0, [32] * 4)] for _ in range(2))
    for images in made:
        assert not any(torch.equal(a, b) for a, b in zip(images[::2], images[1::2], strict=True))
    assert torch.equal(torch.cat(made), torch.cat(again))


def test_an_epoch_has_every_picture_twice(feed):
    indices = np.concatenate(list(feed._indices(0, 0, 4)))
    assert (indices[::2] == indices[1::2]).all()
    assert sorted(indices[::2]) == list(range(12))
    epochs, _ = feed._drawn(0, np.arange(24))
    assert epochs.tolist() == [0, 1] * 12
    epochs, _ = feed._drawn(0, np.arange(24, 28))
    assert epochs.tolist() == [2, 3] * 2
