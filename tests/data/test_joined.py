"""Several data sets as one: which samples, in which classes, with which statistics."""

import numpy as np
import pytest
import torch

from crispseg.data.dataset import SegmentationDataset
from crispseg.data.folder import open_folder
from crispseg.data.joined import Companion, JoinedSet, joined_statistics, understand
from crispseg.data.manifest import statistics_of
from crispseg.data.transforms import Augmentation
from crispseg.errors import UserError
from tests.train import tiny

CLASSES = ("land", "building", "water")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tiny.make_folder(tmp_path_factory.mktemp("two") / "squares")
    (root / "classes.csv").write_text("name,id\nnothing,0\nbuilding,1\n")
    return open_folder(root)


def test_labels_take_the_first_sets_meaning(folder):
    lookup, groups = understand(folder, {"nothing": ["water", "land"]}, CLASSES, ())
    assert groups == ((0, 2),) and lookup[:2].tolist() == [3, 1] and (lookup[2:] == 255).all()
    again, more = understand(folder, {"nothing": ["land", "water"], "building": None}, CLASSES, groups)
    assert more == groups and again[:2].tolist() == [3, 255]
    assert understand(folder, {"nothing": "land"}, CLASSES, groups)[0][0] == 0
    with pytest.raises(
        UserError, match=r"nothing of .*squares is to mean 'nothing', but the classes are land, building"
    ):
        understand(folder, {}, CLASSES, ())
    with pytest.raises(UserError, match="unknown class of .*squares 'bulding'; did you mean 'building'"):
        understand(folder, {"bulding": "building"}, CLASSES, ())
    with pytest.raises(UserError, match="a list of classes or null, not 7"):
        understand(folder, {"nothing": 7}, CLASSES, ())
    with pytest.raises(UserError, match="ignores all of its classes"):
        understand(folder, dict.fromkeys(folder.protocol.classes), CLASSES, ())


def test_every_index_is_one_sets_window(folder):
    how = Augmentation(crop=32)
    first, other = (SegmentationDataset(folder, "train", how, seed=seed, samples=6) for seed in (0, 5))
    lookup, _ = understand(folder, {"nothing": ["land", "water"]}, CLASSES, ())
    joined = JoinedSet(first, [Companion(other, 0.5, lookup), Companion(first, 1.0, lookup)])
    assert len(joined) == 6 + 3 + 6
    for index in range(6):
        assert torch.equal(joined[1, index][0], first[1, index][0]) and torch.equal(
            joined[1, index][1], first[1, index][1]
        )
    for epoch in range(4):  # three windows an epoch: its own epoch takes two of ours
        image, mask, name = joined[epoch, 7]
        place = epoch * 3 + 1
        expected = other[place // 6, place % 6]
        assert name == expected[2] and torch.equal(image, expected[0])
        assert torch.equal(mask, torch.from_numpy(lookup[expected[1].byte().numpy()]).long())
        assert set(mask.unique().tolist()) <= {1, 3, 255}
    with pytest.raises(IndexError):
        joined.compact((0, 15))
    joined.show_means((1.0, 2.0, 3.0))
    assert first.arrays.mean == other.arrays.mean == (1.0, 2.0, 3.0)


def test_statistics_are_those_of_the_pooled_pixels():
    draws = np.random.default_rng(0)
    a, b = draws.normal(10, 2, (1000, 2)), draws.normal(50, 7, (1000, 2))

    def of(pixels):
        return statistics_of(np.array([[len(x), x.sum(), (x**2).sum()] for x in pixels.T]))

    found = joined_statistics([(of(a), 2.0), (of(b), 1.0)])
    pooled = of(np.concatenate([a, a, b]))
    np.testing.assert_allclose(found.mean, pooled.mean)
    np.testing.assert_allclose(found.std, pooled.std, rtol=1e-9)


@pytest.mark.parametrize("value", [255.0, 1000.3, 3e4])
def test_a_band_of_one_value_keeps_its_least_spread(value):
    """As alpha in every image: with a spread of 0 or NaN the network would be shown no numbers."""
    one = statistics_of(np.array([[8, 8 * value, 8 * value**2]]))
    for parts in ([(one, 1.0), (one, 0.3)], [(one, 1.0), (one, 0.25), (one, 0.7)]):
        found = joined_statistics(parts)
        assert found.mean == pytest.approx((value,)) and found.std == pytest.approx((1e-6,), rel=1e-3)
