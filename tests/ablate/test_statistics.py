import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from crispseg.ablate.statistics import BEST, BF, MIOU, columns, paired, summarise


def result(last, best=0.5, **more):
    return {"last": {"mIoU": last, **more}, "best": {"mIoU": best}}


scores = st.lists(st.floats(0, 1), min_size=2, max_size=8)


@given(scores)
def test_mean_and_spread(values):
    summary = summarise([result(value, value / 2) for value in values], MIOU)
    assert summary.mean == pytest.approx(100 * np.mean(values), abs=1e-9)
    assert summary.spread == pytest.approx(100 * np.std(values, ddof=1), abs=1e-9)
    assert summarise([result(0.1, value) for value in values], BEST).mean == pytest.approx(
        100 * np.mean(values), abs=1e-9
    )


def test_few_runs():
    assert summarise([], MIOU).mean is None
    assert summarise([result(0.5)], MIOU).spread is None
    assert summarise([result(0.5)], BF).mean is None  # no boundary labels
    assert summarise([result(0.5), result(None)], MIOU).values == (50.0,)


def test_scores_of_a_class():
    car, boundary = columns(["F1 car", "band mIoU@3px"])
    own, other = result(0.5, F1={"car": 0.75}, **{"band mIoU@3px": 0.25}), result(0.5, F1={"tree": 0.5})
    assert summarise([own, other, result(0.5, F1=None)], car).values == (75.0,)
    assert summarise([own, other], boundary).values == (25.0,)


def test_a_paired_difference_by_hand():
    own = {("d", 0): result(0.60), ("d", 1): result(0.55), ("d", 2): result(0.70), ("d", 3): result(0.1)}
    other = {("d", 0): result(0.58), ("d", 1): result(0.54), ("d", 2): result(0.64), ("e", 3): result(0.9)}
    found = paired(own, other, MIOU)
    # 2, 1 and 6 points: mean 3, variance (1 + 4 + 9) / 2 = 7, standard error sqrt(7 / 3)
    assert found.mean == pytest.approx(3)
    assert found.error == pytest.approx((7 / 3) ** 0.5)
    assert found.pairs == 3 and not found.clear  # 3 is less than 4.30 standard errors
    assert paired(own, {}, MIOU).mean is None
    one = paired(own, {("d", 1): result(0.5)}, MIOU)
    assert (one.mean, one.error, one.pairs) == (pytest.approx(5), None, 1)
    nothing = {**other, ("d", 0): result(None)}  # none of its pixels is labelled
    assert paired(own, nothing, MIOU).pairs == paired(nothing, own, MIOU).pairs == 2
    assert paired(own, own, MIOU).mean == 0 and not paired(own, own, MIOU).clear


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=2, max_size=9))
def test_clear_is_what_the_paired_t_test_says(pairs):
    own, other = (np.array(column) / 1000 for column in zip(*pairs, strict=True))
    if np.std(own - other) < 1e-9:
        return
    found = paired(
        {("d", i): result(v) for i, v in enumerate(own)}, {("d", i): result(v) for i, v in enumerate(other)}, MIOU
    )
    test = stats.ttest_rel(own, other)
    p, interval = test.pvalue, test.confidence_interval(0.95)
    assert found.interval == pytest.approx((100 * interval.low, 100 * interval.high))
    assert abs(p - 0.05) < 1e-9 or found.clear == (p < 0.05)
    assert found.error == pytest.approx(100 * stats.sem(own - other))
