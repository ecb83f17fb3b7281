import pytest
import yaml

from crispseg import config as configs
from crispseg.configs import find_config
from crispseg.data.protocol import get_protocol
from crispseg.errors import UserError
from crispseg.train.config import TrainConfig, config_from, train_config, write_config

BASES = ("potsdam", "vaihingen", "loveda", "dubai", "vaihingen_fragment", "folder")


def keys(values, prefix=""):
    """All dotted keys of nested mappings; an empty mapping is a value."""
    found = set()
    for key, value in values.items():
        found |= keys(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}"}
    return found


def test_default_yaml_lists_every_key_with_its_default():
    written = yaml.safe_load(find_config("default").read_text())
    defaults = configs.to_dict(TrainConfig())
    assert keys(written) == keys(defaults)
    assert train_config("default") == TrainConfig()


def test_a_config_survives_writing_and_reading(tmp_path):
    config = train_config("potsdam", ["seed=3", "model.options.dco={highpass: false}", "ema=0.99"])
    write_config(config, tmp_path / "config.yaml")
    assert train_config(tmp_path / "config.yaml") == config


def test_words_change_a_config():
    config = train_config(
        None, ["data=some/folder", "data.protocol=dubai/own5", "model=crisp_micro", "optimizer.lr=1e-4"]
    )
    assert (config.data.path, config.data.protocol) == ("some/folder", "dubai/own5")
    assert (config.model.name, config.optimizer.lr) == ("crisp_micro", 1e-4)
    assert config_from({"data": "a", "model": "b"}).data.path == "a"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("batchsize=4", "unknown config key 'batchsize'; did you mean 'batch_size'"),
        ("optimizer.learning_rate=1", "unknown config key 'optimizer.learning_rate'; did you mean 'optimizer.lr'"),
        ("optimizer.weight_dekay=1", "did you mean 'optimizer.weight_decay'"),
        ("schedule.decay=linear", "schedule.decay must be one of poly, cosine, restarts, constant"),
        ("schedule.decay=restarts", "needs schedule.first_cycle"),
        ("batch_size=0", "batch_size must be more than 0"),
        ("optimizer.lr=-1", "optimizer.lr must be more than 0"),
        ("ema=1.0", "ema must be at least 0 and below 1"),
        ("precision=int8", "precision must be one of fp32, bf16, fp16"),
        ("optimizer.gate_factor=-1", "optimizer.gate_factor must be at least 0, not -1"),
        ("loss.delta=5", "loss.delta must be from 0 to 2, not 5"),
        ("loss.delta=-1", "loss.delta must be from 0 to 2, not -1"),
        ("loss.mutual=-1", "loss.mutual must be at least 0, not -1"),
        ("loss.orth=-1", "loss.orth must be at least 0, not -1"),
        ("loss.margin=-1", "loss.margin must be at least 0, not -1"),
        ("loss.dice=-1", "loss.dice must be at least 0, not -1"),
        ("loss.auxiliary=-1", "loss.auxiliary must be at least 0, not -1"),
        ("loss.smoothing=2", "loss.smoothing must be from 0 to 1, not 2"),
        ("loss.class_weights=[1,-1]", r"loss.class_weights\[1\] must be at least 0, not -1"),
        ("loss.class_weights=[0,0]", "loss.class_weights are all 0"),
        ("optimizer.lr=.nan", "optimizer.lr must be more than 0, not nan"),
        ("optimizer.lr=.inf", "optimizer.lr must be more than 0 and finite, not inf"),
        ("optimizer.backbone_lr=-1", "optimizer.backbone_lr must be at least 0, not -1"),
        ("optimizer.weight_decay=-1", "optimizer.weight_decay must be at least 0, not -1"),
        ("optimizer.clip=-1", "optimizer.clip must be at least 0, not -1"),  # which would turn gradients around
        ("optimizer.lookahead=-1", "optimizer.lookahead must be at least 0, not -1"),
        ("optimizer.lookahead_alpha=2", "optimizer.lookahead_alpha must be from 0 to 1, not 2"),
        ("optimizer.betas=[1.0,0.9]", r"optimizer.betas\[0\] must be at least 0 and below 1, not 1"),
        ("optimizer.betas=[0.9,-0.1]", r"optimizer.betas\[1\] must be at least 0 and below 1, not -0.1"),
        ("schedule.warmup=-1", "schedule.warmup must be at least 0, not -1"),
        ("schedule.power=-1", "schedule.power must be at least 0, not -1"),
        ("schedule.min_lr=-1", "schedule.min_lr must be at least 0, not -1"),
        ("schedule.epochs=.inf", "schedule.epochs must be more than 0 and finite, not inf"),
        ("max_minutes=.nan", "max_minutes must be more than 0, not nan"),
        ("augment.scale=[2,0.5]", "augment.scale must be two positive numbers, the smaller first"),
        ("augment.scale=[0,1]", "augment.scale must be two positive numbers"),
        ("augment.flip=2", "augment.flip must be from 0 to 1, not 2"),
        ("augment.hue=-1", "augment.hue must be at least 0, not -1"),
        ("data.also=[{path: a, scale: [2, 1]}]", r"data.also\[0\].scale must be two positive numbers"),
        ("workers=-1", "workers must be at least 0, not -1"),
        ("augment.crop=300", "set crop, not augment.crop"),
        ("seed", "expected key=value, got 'seed'"),
    ],
)
def test_wrong_words(word, message):
    with pytest.raises(UserError, match=message):
        train_config(None, [word])


def test_a_rate_that_would_rise_to_its_end_is_refused():
    with pytest.raises(UserError, match=r"schedule.min_lr must be from 0 to 0.001, not 0.01"):
        train_config(None, ["optimizer.lr=1e-3", "schedule.min_lr=0.01"])


def test_cycles_that_never_reach_the_end_are_refused():
    words = ["schedule.decay=restarts", "schedule.first_cycle=0.2"]
    with pytest.raises(
        UserError, match=r"the cycles never reach the end of the training; give a first_cycle above 0.9"
    ):
        train_config(None, [*words, "schedule.cycle_factor=0.1"])
    with pytest.raises(UserError, match=r"schedule.cycle_factor must be more than 0, not 0.0"):
        train_config(None, [*words, "schedule.cycle_factor=0"])
    assert train_config(None, [*words, "schedule.cycle_factor=0.9"]).schedule.cycle_factor == 0.9  # 2 of all steps
    assert train_config(None, ["schedule.decay=restarts", "schedule.first_cycle=1"]).schedule.first_cycle == 1


def test_steps_and_epochs_exclude_each_other():
    with pytest.raises(UserError, match="not both"):
        train_config(None, ["schedule.steps=1", "schedule.epochs=1"])


@pytest.mark.parametrize("name", BASES)
def test_data_configs_are_whole(name):
    config = train_config(name)
    assert config.data.path
    if config.data.protocol is not None:
        protocol = get_protocol(config.data.protocol)
        assert config.crop == protocol.crop and len(config.data.bands or ()) == 3
