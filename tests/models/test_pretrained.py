"""Models that start from a pretrained backbone; the backbones here are small ones made on the spot."""

import pytest
import torch

import crispseg
from crispseg.errors import UserError
from crispseg.models import pretrained
from crispseg.models import shipped as shipped_room
from crispseg.models.backbone_folder import BackboneInfo, load_backbone, read_backbone, save_backbone
from crispseg.models.dco import DCOConfig
from crispseg.models.vssd import create_backbone
from crispseg.train.start import SCRATCH, default_backbone, default_weights

SMALL = {"width": 8, "depths": [1, 1, 1, 1], "heads": [1, 1, 2, 2], "state": 4}
INFO = BackboneInfo(training_data="two photos", scores={"photos/knn": 0.5})


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A stand-in for the backbones that come along: vssd_nano, full size, in half precision."""
    monkeypatch.setattr(shipped_room, "BACKBONES", tmp_path)
    torch.manual_seed(3)
    backbone = create_backbone("vssd_nano")
    save_backbone(backbone, tmp_path / "vssd_nano", "vssd_nano", INFO, storage="half")
    return backbone


def test_a_backbone_is_saved_and_loaded(tmp_path):
    backbone = create_backbone("vssd_nano", **SMALL, fusion="raw")
    save_backbone(backbone, tmp_path / "own", "vssd_nano", INFO)
    again = load_backbone(tmp_path / "own")
    assert pretrained.whole_settings(again.config) == pretrained.whole_settings(backbone.config)
    image = torch.randn(1, 3, 40, 40)
    for a, b in zip(backbone.eval()(image), again(image), strict=True):
        torch.testing.assert_close(a, b, atol=0, rtol=0)
    card = (tmp_path / "own" / "README.md").read_text()
    assert "two photos" in card and "photos/knn: 50.0 %" in card
    assert read_backbone(tmp_path / "own").info == INFO


def test_pretrained_models_have_the_shipped_weights(shipped):
    model = crispseg.create_model("crisp_nano", num_classes=4, pretrained=True)
    assert "the pretrained backbone vssd_nano" in model.origin
    expected = {name: tensor.half().float() for name, tensor in shipped.state_dict().items()}
    for name, tensor in model.backbone.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, expected[name], atol=0, rtol=0)
    backbone = crispseg.create_backbone("vssd_nano", in_channels=1, pretrained=True)
    weight = expected["patch_embed.conv1.conv.weight"]
    torch.testing.assert_close(backbone.patch_embed.conv1.conv.weight.data, weight.mean(1, keepdim=True) * 3)
    assert backbone.origin.startswith("the pretrained backbone vssd_nano (trained on two photos; first convolution")
    with pytest.raises(UserError, match="of the size of vssd_tiny comes with crispseg: there are vssd_nano$"):
        crispseg.create_backbone("vssd_tiny", pretrained=True)


def test_a_backbone_is_meant_by_its_name_its_folder_or_its_run(shipped, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("sets: [{path: photos}]\n")
    with pytest.raises(UserError, match=r"the pretraining in .* is not finished: it has no backbone/ yet; go on with"):
        pretrained.find_pretrained(run)
    save_backbone(create_backbone("vssd_nano"), run / "backbone", "vssd_nano", INFO)
    assert pretrained.find_pretrained(run) == pretrained.find_pretrained(run / "backbone") == run / "backbone"
    assert pretrained.find_pretrained("vssd_nano") == tmp_path / "vssd_nano"
    assert all(pretrained.is_pretrained(word) for word in (run, run / "backbone", "vssd_nano"))
    with pytest.raises(UserError, match="no pretrained backbone vssd_nan.*did you mean 'vssd_nano'"):
        pretrained.find_pretrained("vssd_nan")
    with pytest.raises(UserError, match=r"crisp_nano_aerial holds no backbone: .* \(there are vssd_nano\)"):
        pretrained.find_pretrained("crisp_nano_aerial")
    for word in (run, str(run / "backbone")):
        model = crispseg.create_model("crisp_nano", 3, pretrained=word)
        assert model.origin.startswith(f"the backbone in {run / 'backbone'} (trained on two photos")
        assert crispseg.create_backbone("vssd_nano", pretrained=word).origin == model.origin
    assert create_backbone("vssd_nano").origin == "random weights"
    assert load_backbone(run / "backbone").origin == f"the backbone in {run / 'backbone'}"


def test_a_backbone_in_the_place_of_a_model_is_told_what_to_do(shipped, tmp_path):
    run = tmp_path / "run"
    save_backbone(create_backbone("vssd_nano"), run / "backbone", "vssd_nano", INFO)
    (run / "config.yaml").write_text("sets: [{path: photos}]\n")
    for word, said in (
        ("vssd_nano", "vssd_nano is a pretrained backbone and no model"),
        (run, "is a pretraining run, which leaves a backbone and no model"),
        (run / "backbone", "holds a backbone and no model"),
    ):
        with pytest.raises(UserError, match=f"{said}; train a model from it with `crisp train FOLDER model.weights="):
            crispseg.load(word)


def test_what_nobody_named_is_taken_only_for_the_same_function(shipped):
    """As `crisp train` does; in Python, where it was asked for, it is an error instead of random weights."""
    for options in ({"fusion": "raw"}, {"dco": False}):
        assert default_backbone("crisp_nano", options) == SCRATCH
        with pytest.raises(UserError, match=r'another function than the pretrained .*pretrained="vssd_nano"'):
            crispseg.create_model("crisp_nano", pretrained=True, **options)
        with pytest.raises(UserError, match="another function than the pretrained vssd_nano"):
            crispseg.create_backbone("vssd_nano", pretrained=True, **options)
        model = crispseg.create_model("crisp_nano", pretrained="vssd_nano", **options)
        assert "the pretrained backbone" in model.origin
    assert crispseg.create_backbone("vssd_nano", pretrained=True, drop_path=0.3).origin != "random weights"
    with pytest.raises(UserError, match="banet_restlite has no VSSD backbone"):
        crispseg.create_model("banet_restlite", pretrained=True)


@pytest.mark.parametrize(("storage", "bits"), [("full", 32), ("half", 16), ("int8", 8)])
def test_stored_in_fewer_bits(tmp_path, storage, bits):
    backbone = create_backbone("vssd_nano")
    save_backbone(backbone, tmp_path, "vssd_nano", INFO, storage)
    numbers = sum(tensor.numel() for tensor in backbone.state_dict().values())
    size = (tmp_path / "model.safetensors").stat().st_size
    assert size < 1.06 * numbers * bits / 8 + 50_000
    again = load_backbone(tmp_path).state_dict()
    for name, tensor in backbone.state_dict().items():
        if not tensor.is_floating_point():
            assert torch.equal(again[name], tensor)
            continue
        rows = tensor.flatten(1) if tensor.ndim > 1 else tensor[None]
        largest = rows.abs().amax(1)
        rounding = largest * 2.0**-10 + (largest / 254 if bits == 8 and tensor.ndim > 1 else 0) + 7e-5
        apart = (again[name] - tensor).reshape(rows.shape).abs().amax(1)
        assert (apart <= (rounding if bits < 32 else 0)).all(), name


def test_the_stem_follows_the_bands_names():
    weight = torch.randn(4, 3, 3, 3)
    assert pretrained.adapted_stem(weight, (), 3) is weight
    assert pretrained.adapted_stem(weight, ("red", "green", "blue"), 3) is weight
    infrared = pretrained.adapted_stem(weight, ("near_infrared", "red", "green"), 3)
    expected = torch.stack([weight.mean(1), weight[:, 0], weight[:, 1]], dim=1)
    torch.testing.assert_close(infrared, expected)
    four = pretrained.adapted_stem(weight, ("red", "green", "blue", "near_infrared"), 4)
    expected = torch.cat([weight, weight.mean(1, keepdim=True)], dim=1) * 3 / 4
    torch.testing.assert_close(four, expected)
    # a grey picture, the same in all bands, is seen as before
    grey = torch.randn(1, 1, 8, 8)
    before = torch.nn.functional.conv2d(grey.expand(-1, 3, -1, -1), weight)
    for count in (1, 2, 5, 13):
        adapted = pretrained.adapted_stem(weight, (), count)
        after = torch.nn.functional.conv2d(grey.expand(-1, count, -1, -1), adapted)
        torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-4)


def test_what_does_not_fit_is_said(tmp_path, shipped):
    small = create_backbone("vssd_nano", **SMALL)
    with pytest.raises(UserError, match=r"does not fit this model's backbone.*model\.weights=none"):
        pretrained.start_backbone(small, "vssd_nano")
    said = pretrained.start_backbone(create_backbone("vssd_nano", fusion="raw", dco=False), "vssd_nano")
    assert "fusion raw instead of" in said and "another dco" in said
    with pytest.raises(UserError, match="no pretrained backbone"):
        pretrained.find_pretrained(tmp_path / "nothing")
    (tmp_path / "vssd_nano" / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(UserError, match="damaged or cut short"):
        pretrained.start_backbone(create_backbone("vssd_nano"), "vssd_nano")


def test_training_starts_from_the_whole_model_or_the_backbone_of_its_size(shipped, tmp_path, monkeypatch):
    of_one_function = {}, {"prototypes": 3, "dco": DCOConfig()}, {"drop_path": 0.3, "checkpointing": True}
    for options in of_one_function:
        assert default_weights("crisp_nano", options) == "crisp_nano_aerial"
        assert default_backbone("crisp_nano", options) == "vssd_nano"
    for options in ({"prototypes": 2}, {"matching": "lse"}):
        assert default_weights("crisp_nano", options) == "vssd_nano"
    assert default_weights("vssd_nano_upernet", {"fusion": "normalized", "dco": True}) == "vssd_nano"
    monkeypatch.setattr(shipped_room, "_FOLDER", tmp_path / "without models")
    assert default_weights("crisp_nano", {}) == "vssd_nano"
    assert default_weights("crisp_nano", {"dco": False}) == SCRATCH  # another function: asked for by name only
    assert default_weights("crisp_tiny", {}) == SCRATCH
    assert default_weights("unetformer_r18", {}) == SCRATCH
