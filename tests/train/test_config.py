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
        ("augment.crop=300", "set crop, not augment.crop"),
        ("seed", "expected key=value, got 'seed'"),
    ],
)
def test_wrong_words(word, message):
    with pytest.raises(UserError, match=message):
        train_config(None, [word])


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
