"""What a pretraining run can be told, and what it refuses before it begins."""

import pytest

from crispseg.errors import UserError
from crispseg.pretrain.config import config_from


def test_what_is_said_of_the_only_set_needs_no_list():
    (one,) = config_from({}, ["data=here", "labels=false", "side=64", "aerial=true", "area=[0.1,0.5]"]).sets
    assert (one.path, one.labels, one.side, one.aerial, one.area) == ("here", False, 64, True, (0.1, 0.5))
    config = {"sets": [{"path": "scenes", "labels": True, "aerial": True}]}
    (one,) = config_from(config, ["labels=false"]).sets  # without data= the set stays where it is
    assert (one.path, one.labels, one.aerial) == ("scenes", False, True)
    (one,) = config_from({"data": "here", "labels": False}, ["labels=true"]).sets
    assert (one.path, one.labels) == ("here", True)


def test_sets_that_all_weigh_nothing_need_a_teacher():
    sets = {"sets": [{"path": "a", "weight": 0}, {"path": "b", "weight": 0}]}
    with pytest.raises(UserError, match="the weights of all sets are 0, so that nothing would be learnt"):
        config_from(sets)
    assert config_from({**sets, "teacher": {"build": "package:teacher"}}).sets


def test_what_is_said_of_one_set_among_several_is_refused():
    with pytest.raises(UserError, match=r"labels is said of one set, but the config has 2"):
        config_from({"sets": [{"path": "a"}, {"path": "b"}]}, ["data=x", "labels=false"])
    with pytest.raises(UserError, match="nothing to learn from: give data=FOLDER"):
        config_from({}, ["labels=false"])


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("changes.picks=-1", "changes.picks must be at least 0, not -1"),
        ("changes.mix=2", "changes.mix must be from 0 to 1, not 2"),
        ("changes.flip=-0.1", "changes.flip must be from 0 to 1"),
        ("changes.erase=.nan", "changes.erase must be from 0 to 1, not nan"),
        ("changes.strength=1.5", "changes.strength must be from 0 to 1"),
        ("changes.mixup=-1", "changes.mixup must be at least 0"),
        (
            "changes.area=[2,3]",
            r"changes.area must be two numbers above 0 and up to 1, the smaller first",
        ),
        ("changes.area=[0.8,0.2]", "changes.area must be two numbers"),
        ("changes.ratio=[0,1]", "changes.ratio must be two positive numbers, the smaller first"),
        ("area=[0,1]", r"sets\[0\].area must be two numbers above 0"),
        ("side=0", r"sets\[0\].side must be more than 0"),
        ("smoothing=2", "smoothing must be from 0 to 1"),
        ("teacher.weight=-1", "teacher.weight must be at least 0"),
        ("optimizer.clip=-1", "optimizer.clip must be at least 0, not -1"),
        ("schedule.decay=restarts", "needs schedule.first_cycle"),
        ("schedule.warmup=-1", "schedule.warmup must be at least 0"),
        ("workers=-1", "workers must be at least 0"),
        ("size_shares=[-1]", r"size_shares\[0\] must be more than 0"),
    ],
)
def test_numbers_out_of_bounds_are_named(word, said):
    with pytest.raises(UserError, match=said):
        config_from({}, ["data=here", word])
