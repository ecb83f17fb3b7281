import numpy as np

from crispseg.pretrain.draws import uniforms


def test_numbers_depend_on_their_key_alone():
    epochs, indices = np.array([0, 0, 3, 3]), np.array([5, 6, 5, 1 << 40])
    whole = uniforms(7, epochs, indices, 4)
    for i in range(4):
        np.testing.assert_array_equal(uniforms(7, epochs[i : i + 1], indices[i : i + 1], 4)[0], whole[i])
    np.testing.assert_array_equal(uniforms(7, epochs, indices, 2), whole[:, :2])
    assert len(np.unique(whole)) == whole.size
    assert not np.array_equal(uniforms(8, epochs, indices, 4), whole)
    assert not np.array_equal(uniforms(7, epochs, indices, 4, "mixing"), whole)


def test_they_are_spread_evenly_and_neighbours_are_unrelated():
    numbers = uniforms(0, np.zeros(4000, np.int64), np.arange(4000), 3)
    assert numbers.min() >= 0 and numbers.max() < 1
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    assert abs(counts - numbers.size / 20).max() < 5 * np.sqrt(numbers.size / 20)
    assert abs(np.corrcoef(numbers[:-1, 0], numbers[1:, 0])[0, 1]) < 0.06
    assert abs(np.corrcoef(numbers[:, 0], numbers[:, 1])[0, 1]) < 0.06
