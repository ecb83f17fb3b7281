"""Which prototype won, by brute force; how the prototypes lie, by numpy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from crispseg.analysis.prototypes import Matching, Prototypes, PrototypeSums, allocation, match_prototypes
from tests.analysis.conftest import make_model


@pytest.mark.parametrize("options", [{}, {"neck": "concat", "prototypes": 2}, {"prototypes": 1}])
def test_matching_is_what_the_model_does(options: dict[str, object]) -> None:
    model, image = make_model(**options), torch.randn(1, 3, 45, 70)
    with torch.no_grad():
        matching = match_prototypes(model, image)
        logits, won = model.allocate(image)
    assert torch.equal(matching.logits, model(image))
    predicted = logits[0].argmax(0)
    assert torch.equal(allocation(matching.cosines, predicted), won[0].gather(0, predicted[None])[0])
    np.testing.assert_allclose(matching.prototypes.norm(dim=-1), 1, rtol=1e-5)


@given(st.integers(1, 4), st.integers(1, 4), st.tuples(*[st.integers(1, 9)] * 4))
def test_allocation_by_brute_force(classes: int, count: int, sizes: tuple[int, int, int, int]) -> None:
    height, width, h, w = sizes
    rng = np.random.default_rng(classes * 100 + count)
    cosines = rng.permutation(classes * count * h * w).reshape(classes, count, h, w).astype(np.float32)
    predicted = rng.integers(0, classes, (height, width))
    found = allocation(torch.from_numpy(cosines), torch.from_numpy(predicted)).numpy()
    for y, x in np.ndindex(height, width):
        cell = cosines[predicted[y, x], :, (2 * y + 1) * h // (2 * height), (2 * x + 1) * w // (2 * width)]
        best = 0
        for k in range(count):
            if cell[k] > cell[best]:
                best = k
        assert found[y, x] == best


def summed(classes: int, count: int, images: int) -> tuple[Prototypes, list[np.ndarray], np.ndarray]:
    generator = torch.Generator().manual_seed(3)
    sums, made, used = PrototypeSums(), [], np.zeros((classes, count), np.int64)
    for _ in range(images):
        prototypes = F.normalize(torch.randn(classes, count, 5, generator=generator), dim=-1)
        predicted = torch.randint(0, classes, (6, 7), generator=generator)
        won = torch.randint(0, count, (6, 7), generator=generator)
        present = torch.rand(6, 7, generator=generator) > 0.2
        sums.add(Matching(torch.empty(0), torch.empty(0), prototypes), predicted, won, present)
        made.append(prototypes.double().numpy())
        for y, x in np.ndindex(6, 7):
            used[predicted[y, x], won[y, x]] += bool(present[y, x])
    return sums.finish(), made, used


def test_use_is_counted_over_images() -> None:
    found, _, used = summed(classes=4, count=3, images=3)
    np.testing.assert_array_equal(found.pixels, used)
    np.testing.assert_allclose(found.shares, used / used.sum(1, keepdims=True))
    np.testing.assert_allclose(found.entropy, scipy.stats.entropy(used, axis=1) / np.log(3))
    assert found.used.tolist() == [3] * 4


def test_geometry_by_loops() -> None:
    found, made, _ = summed(classes=4, count=3, images=3)
    flat = [image.reshape(12, 5) for image in made]
    np.testing.assert_allclose(found.cosines, np.mean([each @ each.T for each in flat], 0), atol=1e-7)
    closest = []
    for image in made:
        means = [sum(image[c]) / np.linalg.norm(sum(image[c])) for c in range(4)]
        closest.append(max(means[a] @ means[b] for a in range(4) for b in range(4) if a != b))
    np.testing.assert_allclose(found.closest, closest, atol=1e-7)
    assert found.margin == pytest.approx(1 - max(closest))
    for c in range(4):
        pairs = [abs(i[c, k] @ i[c, m]) for i in made for k in range(3) for m in range(3) if k != m]
        assert found.orthogonality[c] == pytest.approx(np.mean(pairs), abs=1e-7)
    np.testing.assert_allclose(found.steadiness, np.linalg.norm(np.mean(made, 0), axis=-1), atol=1e-7)


def test_one_of_everything() -> None:
    """One class, one prototype, one image: nothing to compare, and nothing breaks."""
    found, _, used = summed(classes=1, count=1, images=1)
    assert found.shares.tolist() == [[1.0]] and found.pixels.tolist() == used.tolist()
    assert np.isnan(found.entropy).all() and np.isnan(found.margin)
    assert found.orthogonality.tolist() == [0.0] and found.steadiness == pytest.approx(1.0)


def test_a_class_never_predicted_and_one_prototype_alone() -> None:
    pixels = np.array([[0, 0], [9, 0], [500, 50]])  # nine in a hundred are not in use
    found = Prototypes(1, pixels, *(np.empty(0) for _ in range(5)))
    assert np.isnan(found.shares[0]).all() and np.isnan(found.entropy[0])
    assert found.entropy[1] == 0 and found.used.tolist() == [0, 1, 1]
