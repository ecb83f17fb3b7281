"""Authors' checkpoints, faked from the names and shapes of their modules: each tensor finds its one place."""

import functools
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import crispseg.peers  # noqa: F401
from crispseg.errors import UserError
from crispseg.models.libraries import import_timm
from crispseg.models.registry import create_model
from crispseg.peers.authors import load_authors_checkpoint, our_name
from crispseg.peers.base import Peer
from tests.peers.facts import KEY_FILES, authors_shapes

INDEX = "relative_position_index"


def on_meta(name: str) -> Peer:
    with torch.device("meta"):
        model = create_model(name, num_classes=6)
    assert isinstance(model, Peer)
    return model


def swin_index(window: int) -> Tensor:
    """The usual relative position index, pair by pair."""
    pixels = [(i, j) for i in range(window) for j in range(window)]
    span = 2 * window - 1
    return torch.tensor([[(i - m + window - 1) * span + (j - n + window - 1) for m, n in pixels] for i, j in pixels])


def fake(file: str) -> dict[str, Tensor]:
    def tensor(name: str, shape: tuple[int, ...]) -> Tensor:
        if name.endswith(INDEX):
            return swin_index(round(shape[0] ** 0.5))
        return torch.tensor(7) if name.endswith("num_batches_tracked") else torch.randn(shape)

    return {name: tensor(name, shape) for name, shape in authors_shapes(file).items()}


@functools.cache
def unetformer_file() -> dict[str, Tensor]:
    return fake("unetformer")


@pytest.fixture
def unetformer() -> Peer:
    model = create_model("unetformer_r18", num_classes=6)
    assert isinstance(model, Peer)
    return model


@pytest.mark.parametrize("file", KEY_FILES)
def test_names_and_shapes_match_one_to_one(file: str) -> None:
    model = on_meta(KEY_FILES[file])
    ours = {}
    for name, shape in authors_shapes(file).items():
        renamed = our_name(model, name)
        assert renamed not in ours, name
        ours[renamed] = model.from_authors(renamed, torch.empty(shape, device="meta")).shape
    indices = {n: b.shape for n, b in model.named_buffers() if n.endswith(INDEX) and n in ours}
    assert ours == {**{n: t.shape for n, t in model.state_dict().items()}, **indices}


@pytest.mark.parametrize("file", ["abcnet", "banet", "unetformer", "sfanet", "dcswin_tiny", "aerialformer_tiny"])
def test_every_value_arrives(file: str) -> None:
    model, state = create_model(KEY_FILES[file], num_classes=6), fake(file)
    report = load_authors_checkpoint(model, state)
    assert set(report.placed) == set(state) and report.left_over == () and report.missing == ()
    here = {**model.state_dict(), **dict(model.named_buffers())}
    for name, tensor in state.items():
        ours = our_name(model, name)
        assert torch.equal(here[ours], model.from_authors(ours, tensor)), name


def test_prefixes_and_wrappers_are_seen_through(unetformer: Peer, tmp_path: Path) -> None:
    state = unetformer_file()
    wrapped = {"state_dict": {f"net.{name}": t for name, t in state.items()}, "epoch": 3}
    torch.save(wrapped, tmp_path / "last.ckpt")
    assert len(load_authors_checkpoint(unetformer, tmp_path / "last.ckpt").placed) == len(state)
    twice = {f"module.model.{name}": t for name, t in state.items()}
    assert load_authors_checkpoint(unetformer, twice).left_over == ()
    tensors = {name: t.contiguous() for name, t in state.items()}
    save_file(tensors, tmp_path / "net.safetensors")
    assert load_authors_checkpoint(unetformer, str(tmp_path / "net.safetensors")).missing == ()


def test_what_has_no_place_is_named(unetformer: Peer) -> None:
    report = load_authors_checkpoint(unetformer, {**unetformer_file(), "backbone.fc.weight": torch.zeros(3)})
    assert report.left_over == ("backbone.fc.weight",)


def test_counters_may_be_missing(unetformer: Peer) -> None:
    state = {n: t for n, t in unetformer_file().items() if not n.endswith("num_batches_tracked")}
    assert load_authors_checkpoint(unetformer, state).missing == ()


def test_missing_tensors_are_an_error_unless_partial(unetformer: Peer) -> None:
    state = {n: t for n, t in unetformer_file().items() if n.startswith("backbone.")}
    before = unetformer.decoder.pre_conv[0].weight.clone()
    lacks = r"the state dict lacks 143 of unetformer_r18's tensors: decoder\.pre_conv\.0\.weight, .* and 138 more"
    with pytest.raises(UserError, match=lacks):
        load_authors_checkpoint(unetformer, state)
    report = load_authors_checkpoint(unetformer, state, partial=True)
    assert "decoder.pre_conv.0.weight" in report.missing
    assert torch.equal(unetformer.decoder.pre_conv[0].weight, before)
    assert torch.equal(unetformer.backbone.conv1.weight, state["backbone.conv1.weight"])


def test_other_classes_are_named_and_nothing_is_loaded() -> None:
    model = create_model("unetformer_r18", num_classes=7)
    before = model.backbone.conv1.weight.clone()
    with pytest.raises(UserError) as caught:
        load_authors_checkpoint(model, unetformer_file())
    assert str(caught.value) == (
        "the state dict does not fit unetformer_r18: it is for 6 classes and this model for 7: "
        "decoder.aux_head.conv_out.0.weight is 6x64x1x1 there and 7x64x1x1 here, "
        "decoder.segmentation_head.2.0.weight is 6x64x1x1 there and 7x64x1x1 here; "
        "create the model with the checkpoint's number of classes and bands"
    )
    assert torch.equal(model.backbone.conv1.weight, before)


@pytest.mark.parametrize("file", ["abcnet", "banet", "unetformer", "sfanet", "dcswin_tiny", "aerialformer_tiny"])
def test_for_other_classes_all_but_the_classifier_is_loaded_in_part(file: str) -> None:
    model, state = create_model(KEY_FILES[file], num_classes=5), fake(file)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    report = load_authors_checkpoint(model, state, partial=True)
    assert report.classes == 6 and "all classes new, as the file has 6" in str(report)
    assert report.missing and len(report.missing) <= 10 and len(report.left_over) == len(report.missing)
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in report.missing)
    assert set(report.placed) | set(report.left_over) == set(state)


def test_another_networks_file(unetformer: Peer) -> None:
    other = {n: torch.zeros(s) for n, s in authors_shapes("abcnet").items()}
    nothing = r"nothing in the state dict belongs to unetformer_r18: cp\.resnet.* and 230 more; is it a checkpoint of"
    with pytest.raises(UserError, match=nothing):
        load_authors_checkpoint(unetformer, other)
    with pytest.raises(UserError, match="it holds no tensors"):
        load_authors_checkpoint(unetformer, {})


def test_d2ls_takes_torchvisions_convnext() -> None:
    """Its authors' encoder is torchvision's; renamed into timm's it computes the same."""
    import_timm()
    from torchvision.models import convnext_base

    theirs = convnext_base().features.eval()
    model = create_model("d2ls_convnextb", num_classes=2).eval()
    for name, parameter in theirs.named_parameters():
        if name.endswith("layer_scale"):  # they start at 1e-6, where a mistake would not show
            torch.nn.init.normal_(parameter)
    state = {f"backbone.0.{name}": t for name, t in theirs.state_dict().items()}
    report = load_authors_checkpoint(model, state, partial=True)
    assert report.left_over == () and not any(name.startswith("backbone.") for name in report.missing)
    x = torch.randn(1, 3, 36, 70)
    with torch.no_grad():
        ours = model.backbone(x)
        for i, stage in enumerate(theirs):
            x = stage(x)
            if i % 2 == 1:
                torch.testing.assert_close(ours[i // 2], x, rtol=1e-3, atol=1e-3)


def test_an_unknown_pixel_order_is_refused(unetformer: Peer) -> None:
    state = dict(unetformer_file())
    state[f"decoder.b4.attn.{INDEX}"] = state[f"decoder.b4.attn.{INDEX}"].T
    with pytest.raises(UserError, match=r"decoder\.b4\.attn\.relative_position_index in the state dict orders"):
        load_authors_checkpoint(unetformer, state)


def test_the_same_tensor_twice(unetformer: Peer) -> None:
    state = {**unetformer_file(), "net.backbone.conv1.weight": torch.zeros(64, 3, 7, 7)}
    with pytest.raises(UserError, match=r"holds backbone\.conv1\.weight twice, as backbone.* and as net\.backbone"):
        load_authors_checkpoint(unetformer, state)


def test_only_peers_have_authors() -> None:
    with pytest.raises(UserError, match="Linear has no authors' checkpoints"):
        load_authors_checkpoint(torch.nn.Linear(1, 1), {})


def test_a_file_that_is_not_there(unetformer: Peer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.pth"):
        load_authors_checkpoint(unetformer, tmp_path / "none.pth")
