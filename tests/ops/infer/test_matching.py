"""The formulas against loops written out; interpreted_head.py and tests/fused/test_gpu.py have the kernels."""

import pytest
import torch
from torch.nn import functional

from crispseg.ops.infer.matching import best_cosines, grouped_product, max_and_mean, mix_candidates


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_best_cosines():
    descriptors, prototypes = draw(2, 7, 5), draw(2, 3, 4, 5)
    found = best_cosines(descriptors, prototypes, 8.0)
    assert found.shape == (2, 3, 7)
    for b in range(2):
        for c in range(3):
            for i in range(7):
                cosines = functional.cosine_similarity(descriptors[b, i][None], prototypes[b, c], dim=-1)
                torch.testing.assert_close(found[b, c, i], 8 * cosines.max())


def test_best_cosines_of_nothing_are_zero():
    assert torch.equal(best_cosines(torch.zeros(1, 2, 4), torch.zeros(1, 3, 2, 4), 5.0), torch.zeros(1, 3, 2))


def test_half_precision_is_scored_in_float32():
    assert best_cosines(torch.randn(1, 2, 4).half(), torch.randn(1, 3, 2, 4).half(), 5.0).dtype == torch.float32


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("relu", [False, True])
def test_grouped_product(groups, relu):
    x, weight, bias = draw(2, 3, 4), draw(groups, 4, 5), draw(groups, 5)
    found = grouped_product(x, weight, bias, relu)
    for b in range(2):
        for c in range(3):
            g = c % groups
            expected = x[b, c] @ weight[g] + bias[g]
            torch.testing.assert_close(found[b, c], expected.clamp(min=0) if relu else expected)


def test_max_and_mean():
    x = draw(2, 5, 6)
    found = max_and_mean(x)
    for b in range(2):
        expected = [x[b, :, d].max() if d < 3 else x[b, :, d].sum() / 5 for d in range(6)]
        torch.testing.assert_close(found[b], torch.stack(expected))


def test_mix_candidates():
    x, weight, bias, bank = draw(2, 7), draw(7, 3 * 4), draw(3 * 4), draw(3, 4, 5)
    found, logits = mix_candidates(x, weight, bias, bank), x @ weight + bias
    for b in range(2):
        for c in range(3):
            weights = torch.softmax(logits[b, 4 * c : 4 * c + 4], 0)
            torch.testing.assert_close(found[b, c], sum(weights[m] * bank[c, m] for m in range(4)))
