import numpy as np
import pytest
import torch

from crispseg.bench.check import contrast, relative_error


def test_relative_error_is_the_worst_of_the_norms():
    x, y = np.random.default_rng(0).normal(size=(2, 3, 4))
    found = [torch.tensor(x), torch.tensor(y)]
    truth = [torch.tensor(y), torch.tensor(y)]
    assert relative_error(found, truth) == pytest.approx(np.linalg.norm(x - y) / np.linalg.norm(y))
    assert relative_error(truth, truth) == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_infinitely_wrong(bad):
    fine, spoilt = torch.ones(2), torch.tensor([1.0, bad])
    assert relative_error([fine, spoilt], [fine, fine]) == float("inf")
    assert relative_error([fine, fine], [fine, spoilt]) == float("inf")


def test_a_truth_of_zero_is_measured_by_the_least_norm():
    assert relative_error([torch.full((4,), 1e-9)], [torch.zeros(4)], 1e-3) == pytest.approx(2e-6)


def test_another_shape_is_infinitely_wrong():
    assert relative_error([torch.ones(2, 1)], [torch.ones(2)]) == float("inf")


def test_a_missing_output_is_an_error():
    with pytest.raises(ValueError):
        relative_error([torch.ones(2)], [torch.ones(2), torch.ones(2)])


def test_contrast():
    one, other, near = torch.ones(4), 3 * torch.ones(4), 1.1 * torch.ones(4)
    assert contrast([(one,), (other,), (near,)]) == pytest.approx(0.1)
    assert contrast([(one,)]) is None
