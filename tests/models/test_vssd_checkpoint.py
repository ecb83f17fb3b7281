import pickle

import pytest
import torch
from safetensors.torch import save_file

import crispseg
from crispseg.errors import UserError
from crispseg.models.vssd import VARIANTS
from crispseg.models.vssd_checkpoint import other_fusion, start_from_checkpoint
from tests.models.test_vssd import PUBLIC, randomised

SMALL = {"width": 8, "depths": (1, 1, 2, 1), "heads": (1, 2, 2, 4), "state": 4}


def public_weights(classifier=True):
    """A state dict with the names a public classification (or segmentation) file holds."""
    weights = randomised(crispseg.create_backbone("vssd_micro", **PUBLIC, **SMALL)).state_dict()
    if classifier:
        weights = {n: t for n, t in weights.items() if not n.startswith("outnorm")}
        weights |= {"norm.weight": torch.ones(64), "norm.bias": torch.zeros(64)}
        weights |= {"head.weight": torch.zeros(10, 64), "head.bias": torch.zeros(10)}
    return weights


def backbone(**options):
    return crispseg.create_backbone("vssd_micro", **(PUBLIC | SMALL | options))


def test_names_of_the_public_code():
    names = set(public_weights(classifier=False))
    for name in (
        "patch_embed.conv1.conv.weight",
        "patch_embed.conv2.1.norm.running_mean",
        "layers.0.blocks.0.attn.in_proj.weight",
        "layers.0.blocks.0.attn.A_log",
        "layers.0.blocks.0.attn.conv2d.bias",
        "layers.0.blocks.0.cpe1.weight",
        "layers.0.downsample.conv.0.conv.weight",
        "layers.3.blocks.0.attn.to_qkv.weight",
        "layers.3.blocks.0.mlp.fc1.bias",
        "outnorm0.weight",
    ):
        assert name in names


@pytest.mark.parametrize("form", ["model", "bare", "safetensors", "segmentation", "mapping"])
def test_every_form_loads_every_tensor(form, tmp_path):
    weights = public_weights(classifier=form != "segmentation")
    path = tmp_path / ("w.safetensors" if form == "safetensors" else "w.pth")
    if form == "model":
        torch.save({"model": weights, "epoch": 3}, path)
    elif form == "bare":
        torch.save(weights, path)
    elif form == "safetensors":
        save_file({n: t.contiguous() for n, t in weights.items()}, path)
    elif form == "segmentation":
        prefixed = {f"backbone.{n}": t for n, t in weights.items()} | {"decode_head.conv.weight": torch.ones(1)}
        torch.save({"state_dict": prefixed}, path)
    target = backbone()
    fresh = crispseg.load_vssd_checkpoint(target, {"model": weights} if form == "mapping" else path)
    loaded = target.state_dict()
    for name, tensor in weights.items():
        if not name.startswith(("norm.", "head.")):
            assert torch.equal(loaded[name], tensor), name
    assert all(name.startswith("outnorm") for name in fresh)
    assert bool(fresh) == (form != "segmentation")


def test_a_file_need_not_count_the_batches_that_its_norms_saw():
    """Files from before torch did."""
    weights = public_weights()
    old = {name: tensor for name, tensor in weights.items() if not name.endswith("num_batches_tracked")}
    assert len(old) < len(weights)
    fresh = set(crispseg.load_vssd_checkpoint(backbone(), old))
    assert fresh - set(crispseg.load_vssd_checkpoint(backbone(), weights)) == weights.keys() - old.keys()


def test_dco_keeps_its_own_gates():
    target = backbone(dco=True, fusion="normalized")
    fresh = crispseg.load_vssd_checkpoint(target, public_weights())
    assert any(".dco." in name for name in fresh)
    assert torch.equal(target.layers[0].blocks[0].attn.dco.omega, torch.full((1,), 0.01))


def test_says_what_does_not_fit():
    with pytest.raises(UserError, match=r"not in the file: layers.3.blocks.0.attn.dt_bias.*last_stage=\"attention\""):
        crispseg.load_vssd_checkpoint(backbone(last_stage="ncssd"), public_weights())
    with pytest.raises(UserError, match=r"patch_embed.conv1.conv.weight \(file 4x3x3x3, model 4x5x3x3\).*3 bands"):
        crispseg.load_vssd_checkpoint(
            crispseg.create_backbone("vssd_micro", in_channels=5, **PUBLIC, **SMALL), public_weights()
        )
    extra = public_weights() | {"layers.0.blocks.0.attn.lepe.weight": torch.ones(1)}
    with pytest.raises(UserError, match="not in the model: layers.0.blocks.0.attn.lepe.weight"):
        crispseg.load_vssd_checkpoint(backbone(), extra)
    with pytest.raises(UserError, match="Is it a VSSD checkpoint"):
        crispseg.load_vssd_checkpoint(backbone(), {"conv1.weight": torch.ones(1)})


def test_nothing_is_loaded_when_something_does_not_fit():
    target = backbone()
    before = {n: t.clone() for n, t in target.state_dict().items()}
    weights = public_weights()
    del weights["layers.0.blocks.0.cpe1.weight"]
    with pytest.raises(UserError):
        crispseg.load_vssd_checkpoint(target, weights)
    assert all(torch.equal(t, before[n]) for n, t in target.state_dict().items())


def test_unsafe_and_damaged_files(tmp_path):
    (tmp_path / "evil.pth").write_bytes(pickle.dumps({"model": print}))
    (tmp_path / "cut.pth").write_bytes(b"PK\x03\x04 nothing")
    torch.save([1, 2], tmp_path / "list.pth")
    for name, message in (
        ("evil", "not a plain weight file|damaged"),
        ("cut", "damaged"),
        ("list", "not named weights"),
    ):
        with pytest.raises(UserError, match=message):
            crispseg.load_vssd_checkpoint(backbone(), tmp_path / f"{name}.pth")
    with pytest.raises(UserError, match="no weight file"):
        crispseg.load_vssd_checkpoint(backbone(), tmp_path / "absent.pth")


@pytest.mark.parametrize("fusion", ["raw", "normalized"])
def test_a_hybrid_file_starts_the_papers_model(fusion, tmp_path):
    weights, path = public_weights(), tmp_path / "vssd_tiny.pth"
    torch.save({"model": weights}, path)
    target = backbone(last_stage="ncssd", fusion=fusion, dco=True)
    said, warning = start_from_checkpoint(target, path), other_fusion(target)
    loaded = target.state_dict()
    same = [name for name in loaded if name in weights and torch.equal(loaded[name], weights[name])]
    assert len(same) == sum(name in loaded and loaded[name].shape == t.shape for name, t in weights.items()) > 80
    assert "under layers.3.attn" in said and str(path) in said and "\n" not in said
    assert "not in the file, so fresh: DCO's gates, the output norms, stage 4's mixers)" in said
    assert ("raw fusion and this model has normalized" in warning) == (fusion == "normalized")
    assert fusion == "normalized" or not warning


def test_the_public_model_itself_starts_whole_and_without_remarks(tmp_path):
    torch.save(public_weights(classifier=False), tmp_path / "w.pth")
    said = start_from_checkpoint(backbone(), tmp_path / "w.pth")
    assert "fresh" not in said and "left out" not in said and not other_fusion(backbone())


@pytest.mark.parametrize("name", VARIANTS)
def test_a_file_of_another_size_is_told_which_model_it_is_for(name, tmp_path):
    path = tmp_path / "w.pth"
    with torch.device("meta"):
        shapes = {n: t.shape for n, t in crispseg.create_backbone(name, **PUBLIC).state_dict().items()}
    torch.save({n: torch.zeros(()).expand(shape) for n, shape in shapes.items()}, path)
    other = "vssd_small" if name != "vssd_small" else "vssd_tiny"
    for load in (crispseg.load_vssd_checkpoint, start_from_checkpoint):
        with pytest.raises(UserError, match=rf"is a {name} of width .*take model={name.replace('vssd', 'crisp')}") as e:
            load(crispseg.create_backbone(other), path)
        assert len(str(e.value)) < 250 + len(str(path))
    assert name.replace("vssd", "crisp") in crispseg.list_models()


def test_a_size_that_no_model_has_is_said(tmp_path):
    torch.save(public_weights(), tmp_path / "w.pth")
    with pytest.raises(UserError, match="a VSSD of width 8 and depths 1, 1, 2, 1, .*no model here has that size"):
        crispseg.load_vssd_checkpoint(crispseg.create_backbone("vssd_micro"), tmp_path / "w.pth")


def test_a_start_adapts_the_first_convolution_to_the_bands(tmp_path):
    weights, path = public_weights(), tmp_path / "vssd_tiny.pth"
    torch.save(weights, path)
    target = crispseg.create_backbone("vssd_micro", in_channels=4, **PUBLIC | SMALL)
    start_from_checkpoint(target, path, ("near_infrared", "red", "green", "blue"))
    stem, given = (w["patch_embed.conv1.conv.weight"] for w in (target.state_dict(), weights))
    torch.testing.assert_close(stem[:, 1:], given * 3 / 4)
    torch.testing.assert_close(stem[:, 0], given.mean(1) * 3 / 4)


def test_a_start_from_another_network_is_refused(tmp_path):
    torch.save({"conv1.weight": torch.ones(1)}, tmp_path / "resnet.pth")
    with pytest.raises(UserError, match="Is it a VSSD checkpoint"):
        start_from_checkpoint(backbone(), tmp_path / "resnet.pth")
