import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import crispseg
from crispseg.bench import specs
from crispseg.errors import UserError
from crispseg.models import registry
from tests.bench.conftest import TINY
from tests.conftest import relative_error


def test_names_options_and_patterns():
    nano, odd = specs.parse(["crisp_nano", "crisp_nano:width=8,depths=[1,1,1,1],dco.skip=before"])
    assert (nano.name, nano.options) == ("crisp_nano", {})
    assert odd.name == "crisp_nano"
    assert odd.options == {"width": 8, "depths": [1, 1, 1, 1], "dco": {"skip": "before"}}
    assert [spec.name for spec in specs.parse(["crisp_*", "crisp_nano"])] == crispseg.list_models("crisp_*")


def test_without_names_there_are_defaults():
    assert "crisp_tiny" in [spec.name for spec in specs.parse([])]


@given(st.lists(st.sampled_from(["a=1", "b=[1,2]", "c={d: 1, e: [2,3]}", "f=x"]), min_size=1))
def test_options_are_split_at_outer_commas(parts):
    assert specs.split_options(",".join(parts)) == parts


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("crisp_nan", "did you mean 'crisp_nano'?"),
        ("crisp_nano:width", "expected key=value"),
        ("zzz*", "no model matches"),
    ],
)
def test_mistakes(word, message):
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        specs.parse([word])


def test_missing_extras_are_skipped_with_what_to_install(monkeypatch):
    entry = registry.Entry(lambda **_: None, "", requires="no_such_package", extra="peers")
    monkeypatch.setitem(registry._ENTRIES, "far_away", entry)
    (spec,) = specs.parse(["far_away"])
    assert specs.skipped(spec) == specs.Skipped("far_away", "needs pip install 'crispseg[peers]'")
    assert specs.skipped(specs.parse(["crisp_nano"])[0]) is None


def test_a_folder_keeps_its_weights_and_a_name_gets_the_same_ones_each_time(settings, tmp_path):
    (spec,) = specs.parse([TINY])
    first = specs.build(spec, settings)
    torch.manual_seed(7)
    second = specs.build(spec, settings)
    first.save(tmp_path / "m")
    (folder,) = specs.parse([str(tmp_path / "m")])
    saved = specs.build(folder, settings)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name])
        assert torch.equal(tensor, saved.state_dict()[name])
    assert not any(module.training for module in first.modules())


def test_settled_models_tell_images_apart(settings):
    """What settling is for: different images get outputs that differ by more than half precision rounds."""
    (spec,) = specs.parse([TINY])
    model = specs.build(spec, settings)
    fresh = crispseg.create_model("crisp_nano", **spec.options).eval()
    images = [specs.random_images(1, 3, 64, settings, seed) for seed in (0, 1)]
    with torch.no_grad():
        settled_apart = relative_error(model(images[0]), model(images[1]))
        fresh_apart = relative_error(fresh(images[0]), fresh(images[1]))
    assert settled_apart > max(0.05, fresh_apart)


def test_images_are_alike_in_every_precision_and_never_zero(settings):
    images = specs.random_images(2, 4, 40, settings, seed=3)
    assert images.shape == (2, 4, 40, 40)
    assert torch.equal(images, images.bfloat16().float())
    assert images.std().item() == pytest.approx(1.0, abs=0.01)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert (images == 0).float().mean() < 0.01
    assert not torch.equal(images, specs.random_images(2, 4, 40, settings, seed=4))
