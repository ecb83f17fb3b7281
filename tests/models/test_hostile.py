"""Model folders and weight files that claim what they are not."""

import json
import pickle
import time

import pytest
import torch

import crispseg
from crispseg import memory
from crispseg.errors import UserError
from crispseg.models.vssd import create_backbone
from crispseg.models.vssd_checkpoint import load_vssd_checkpoint
from crispseg.models.weights import read_weights
from tests.models.test_registered import SHRINK, SHRINK_CRISP


@pytest.fixture
def folder(tmp_path):
    crispseg.create_model("crisp_nano", num_classes=2, **SHRINK_CRISP).save(tmp_path / "model")
    return tmp_path / "model"


def change(folder, change):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def option(name, value):
    return lambda config: config["options"].update({name: value})


def entry(name, value):
    return lambda config: config.update({name: value})


def fact(name, value):
    return lambda config: config["info"].update({name: value})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (entry("num_classes", 10**6), "larger model than its weights"),
        (entry("num_classes", 10**15), "larger model than its weights|no model that can be made"),
        (entry("in_channels", 10**7), "larger model than its weights"),
        (option("depths", [10**5, 1, 1, 1]), "depths must be from 1 to 65536"),
        (option("depths", [60_000, 1, 1, 1]), "larger model than its weights"),
        (option("depths", [1, 1, 1, 10**12]), "depths must be from 1"),
        (option("width", 60_000), "larger model than its weights"),
        (option("width", -8), "width must be from 1"),
        (option("width", 9), "describes no model that can be made|do not belong together|divide"),
        (option("heads", [0, 1, 1, 1]), "heads must be from 1"),
        (option("layers", 65_000), "larger model than its weights"),
        (option("dim", 10**30), "dim must be from 1"),
        (option("drop_path", float("nan")), "drop_path must be"),
        (entry("num_classes", "2"), "num_classes must be a whole number"),
        (entry("num_classes", True), "num_classes must be a whole number"),
        (entry("name", ["crisp_nano"]), "name must be text"),
        (entry("name", "crisp_nan"), "did you mean 'crisp_nano'"),
        (entry("options", []), "options must be a mapping"),
        (entry("options", {"": 1}), "unknown model option"),
        (entry("info", None), "info must be a mapping"),
        (entry("format", "1"), "format must be a whole number"),
        (fact("mean", [float("nan")] * 3), "must be finite"),
        (fact("palette", [[0, 0, 300]]), "from 0 to 255"),
        (fact("classes", "roads"), "must be a list"),
    ],
)
def test_configs_of_wrong_types_and_absurd_sizes(folder, damage, message):
    change(folder, damage)
    memory.reset_peak()
    before, began = memory.resident(), time.monotonic()
    with pytest.raises(UserError, match=message):
        crispseg.load(folder)
    assert memory.peak() - before < 300 << 20
    assert time.monotonic() - began < 15


def test_a_budget_is_no_obstacle(folder):
    assert crispseg.load(folder).num_classes == 2
    model = crispseg.create_model("banet_restlite", 3)  # the peer that needs no timm
    model.save(folder.parent / "peer")
    assert crispseg.load(folder.parent / "peer").name == "banet_restlite"


def test_keys_that_are_no_names(tmp_path):
    backbone = create_backbone("vssd_nano", **SHRINK)
    torch.save({"model": {**backbone.state_dict(), 7: torch.ones(2), None: 3}}, tmp_path / "v.pth")
    assert load_vssd_checkpoint(backbone, tmp_path / "v.pth") == []
    torch.save({1: torch.ones(2), "model": 3}, tmp_path / "w.pth")
    with pytest.raises(UserError, match="Is it a VSSD checkpoint"):
        load_vssd_checkpoint(backbone, tmp_path / "w.pth")


RAN = []


class Evil:
    """Unpickled by a trusting reader, it leaves a mark."""

    def __reduce__(self):
        return exec, ("from tests.models.test_hostile import RAN; RAN.append(1)",)


@pytest.mark.parametrize("name", ["w.pth", "w.pt", "w.ckpt", "w.safetensors"])
def test_pickled_code_is_not_run(tmp_path, name):
    pickle.loads(pickle.dumps(Evil()))
    assert RAN.pop() == 1  # it would
    (tmp_path / name).write_bytes(pickle.dumps({"model": Evil()}))
    with pytest.raises(UserError, match="not a plain weight file|damaged"):
        read_weights(tmp_path / name)
    torch.save({"model": Evil()}, tmp_path / name)
    with pytest.raises(UserError, match="not a plain weight file|damaged"):
        read_weights(tmp_path / name)
    assert not RAN


def test_tensors_larger_than_their_file(tmp_path):
    """A tensor over four numbers that says it has ten thousand million: torch would make room for all of them."""
    import torch._utils

    class Claims:
        def __reduce__(self):
            storage = torch.ones(4)._typed_storage()
            return torch._utils._rebuild_tensor_v2, (storage, 0, (10**10,), (1,), False, {})

    torch.save({"w": Claims()}, tmp_path / "w.pt")
    memory.reset_peak()
    before = memory.resident()
    with pytest.raises(UserError, match="larger than the file|damaged"):
        read_weights(tmp_path / "w.pt")
    assert memory.peak() - before < 200 << 20


@pytest.mark.parametrize("zipped", [True, False])
def test_a_name_without_end_is_refused_at_once_and_long_texts_are_not(tmp_path, zipped):
    """torch would search its own message about such a file for longer than anybody waits."""
    path = tmp_path / "w.pth"
    told = {"meta": {"config": "learning_rate = 1\n" * 5000}, "w": torch.zeros(2)}
    torch.save(told, path, _use_new_zipfile_serialization=zipped)
    assert read_weights(path)["meta"] == told["meta"]
    torch.save({"x" * 200_000: torch.zeros(2)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(UserError, match=r"damaged or cut short \(a name in it has 1,000 characters"):
        read_weights(path)
