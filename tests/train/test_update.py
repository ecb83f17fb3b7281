"""One update of the weights against torch's own optimizer, and what of it is saved."""

import copy

import pytest
import torch
from torch import nn

from crispseg.errors import UserError
from crispseg.train.optimizer import OptimizerConfig
from crispseg.train.schedule import ScheduleConfig
from crispseg.train.update import Updated

CPU = torch.device("cpu")


def updated(precision=None, ema=0.0, **config):
    torch.manual_seed(0)
    model = nn.Sequential()
    model.backbone, model.head = nn.Linear(4, 3), nn.Linear(3, 2)
    return Updated(model, OptimizerConfig(lr=1e-2, weight_decay=0.0, **config), CPU, precision, ema)


def loss_of(model):
    return 9 * model.head(torch.tanh(model.backbone(torch.arange(8.0).view(2, 4)))).square().sum()


@pytest.mark.parametrize("precision", [None, "fp16"])
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_gradients_are_clipped_in_their_own_scale(precision, clip):
    """In half precision they come scaled by 65536."""
    made = updated(precision, clip=clip)
    twin = copy.deepcopy(made.model)
    plain = torch.optim.AdamW(twin.parameters(), 1e-2, weight_decay=0.0, eps=1e-8)
    for step in (1, 2):
        made.scaler.scale(loss_of(made.model)).backward()
        norm = made.update(step)
        loss_of(twin).backward()
        expected = nn.utils.clip_grad_norm_(twin.parameters(), clip or float("inf"))
        plain.step()
        plain.zero_grad()
        torch.testing.assert_close(norm, expected)
    for ours, theirs in zip(made.model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_rates_follow_the_schedule_and_the_largest_is_told():
    made = updated(backbone_lr=1e-3)
    made.set_rates(0, ScheduleConfig(steps=10, warmup=1))
    assert {group["lr"] for group in made.optimizer.param_groups} == {5e-3, 5e-4}
    assert made.lr == 5e-3


def trained(made, first, last):
    for step in range(first, last):
        loss_of(made.model).backward()
        made.update(step)
    return made


def test_all_that_changes_the_weights_is_saved():
    """Half of a training goes on as the whole one would have: moments, slow weights and the average."""
    more = {"ema": 0.6, "lookahead": 3}
    whole = trained(updated(**more), 1, 9)
    half = updated(**more)
    nn.init.zeros_(half.model.head.weight)
    half.load_state_dict(copy.deepcopy(trained(updated(**more), 1, 5).state_dict()))
    trained(half, 5, 9)
    with whole.final_weights(), half.final_weights():
        for one, other in zip(whole.model.parameters(), half.model.parameters(), strict=True):
            assert torch.equal(one, other)
    last = [parameter.detach().clone() for parameter in whole.model.parameters()]
    with whole.final_weights():
        assert not any(torch.equal(one, other) for one, other in zip(last, whole.model.parameters(), strict=True))
    assert all(torch.equal(one, other) for one, other in zip(last, whole.model.parameters(), strict=True))


def test_moments_of_another_shape_are_refused():
    made = trained(updated(), 1, 2)
    state = copy.deepcopy(made.state_dict())
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(2, 2)
    with pytest.raises(UserError, match=r"does not fit the model of this run's config: the moments of a parameter"):
        made.load_state_dict(state)
