"""The learning rate against torch's own schedulers."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from crispseg.train.schedule import ScheduleConfig, learning_rate


def torch_rates(make, steps, base=0.1):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=base)
    scheduler = make(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("config", "make"),
    [
        (ScheduleConfig(decay="poly", power=0.9), lambda o: lr_scheduler.PolynomialLR(o, 70, 0.9)),
        (ScheduleConfig(decay="cosine", min_lr=1e-3), lambda o: lr_scheduler.CosineAnnealingLR(o, 70, 1e-3)),
        (
            ScheduleConfig(decay="restarts", first_cycle=1 / 7, cycle_factor=2),
            lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 10, 2),
        ),
        (ScheduleConfig(decay="constant"), lambda o: lr_scheduler.ConstantLR(o, 1.0)),
    ],
)
def test_decay_is_torchs(config, make):
    config = dataclasses.replace(config, steps=70, warmup=0)
    ours = [learning_rate(step, 0.1, config) for step in range(70)]
    assert ours == pytest.approx(torch_rates(make, 70), rel=1e-6, abs=1e-9)


def test_warmup_is_linear_and_reaches_the_peak():
    config = ScheduleConfig(steps=100, warmup=4)
    rates = [learning_rate(step, 1.0, config) for step in range(6)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5] < 1.0


@given(
    decay=st.sampled_from(["poly", "cosine", "restarts", "constant"]),
    steps=st.integers(1, 500),
    warmup=st.integers(0, 600),
    first=st.floats(0.01, 1.0),
    factor=st.floats(1.0, 3.0),
)
def test_rate_stays_between_its_bounds(decay, steps, warmup, first, factor):
    config = ScheduleConfig(
        steps=steps, warmup=warmup, decay=decay, min_lr=1e-4, first_cycle=first, cycle_factor=factor
    )
    after = [learning_rate(step, 0.1, config) for step in range(warmup, steps + 1)]
    assert all(1e-4 - 1e-12 <= rate <= 0.1 + 1e-12 for rate in after)
