"""Every peer as a whole: any size, any bands, batch of one, training and evaluation, half precision, save and load."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import crispseg.peers  # noqa: F401
from crispseg.models.base import Output, SegmentationModel
from crispseg.models.folder import load
from crispseg.models.registry import create_model
from tests.conftest import relative_error
from tests.peers.facts import PEERS

LARGE = ("d2ls_convnextb", "pyramidmamba_swinb")
AUX = {"unetformer_r18": 1, "sfanet_effb3": 1, "abcnet_r18": 2, "d2ls_convnextb": 1}
CLASSES, BANDS = 3, 2


def build(name: str) -> SegmentationModel:
    torch.manual_seed(0)
    model = create_model(name, num_classes=CLASSES, in_channels=BANDS)
    for key, parameter in model.named_parameters():
        if key.endswith("gamma"):  # attentions and layer scales that start at (almost) zero take part
            torch.nn.init.constant_(parameter, 0.5)
    return model


@pytest.fixture(scope="module", params=PEERS)
def model(request: pytest.FixtureRequest) -> SegmentationModel:
    return build(request.param)


def image(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("size", [(1, 1), (33, 47)])
def test_trains_on_one_image_of_any_size(model: SegmentationModel, size: tuple[int, int]) -> None:
    model.train().zero_grad()
    out = model(image(1, BANDS, *size))
    assert isinstance(out, Output)
    assert out.logits.shape == (1, CLASSES, *size)
    assert [a.shape for a in out.aux] == [out.logits.shape] * AUX.get(model.name, 0)
    sum(t.square().mean() for t in (out.logits, *out.aux)).backward()
    for key, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, key
        assert parameter.grad is None or parameter.grad.isfinite().all(), key
    model.zero_grad()


def test_evaluates_to_finite_logits_of_the_inputs_size(model: SegmentationModel) -> None:
    model.eval()
    with torch.no_grad():
        for size in ((1, 1), (5, 70), (33, 47)):
            logits = model(image(1, BANDS, *size))
            assert logits.shape == (1, CLASSES, *size) and logits.isfinite().all()


def test_images_of_a_batch_do_not_mix(model: SegmentationModel) -> None:
    model.eval()
    x = image(2, BANDS, 40, 33)
    with torch.no_grad():
        assert relative_error(torch.cat([model(x[:1]), model(x[1:])]), model(x)) < 1e-4


def test_bfloat16_autocast_stays_close(model: SegmentationModel) -> None:
    model.eval()
    x = image(1, BANDS, 64, 40)
    with torch.no_grad():
        truth = model(x)
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
    assert out.isfinite().all() and relative_error(out, truth) < 0.06


def test_channels_last_changes_nothing(model: SegmentationModel) -> None:
    model.eval()
    x = image(1, BANDS, 33, 64)
    with torch.no_grad():
        assert relative_error(model(x.to(memory_format=torch.channels_last)), model(x)) < 1e-4


def test_saves_and_loads(model: SegmentationModel, tmp_path: Path) -> None:
    if model.name in LARGE:
        pytest.skip("half a gigabyte; nothing in saving depends on the network")
    model.eval().save(tmp_path / "model")
    x = image(1, BANDS, 33, 47)
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "model")(x), model(x))


@pytest.mark.parametrize("name", ["unetformer_r18", "sfanet_effb3"])
def test_sizes_just_below_a_multiple_of_32_are_stretched_not_cropped(name: str) -> None:
    """From 29 to 32 px the stride-4 map has 8; the authors' networks take those sizes and stretch the logits."""
    model = build(name).eval()
    seen: list[Tensor] = []
    model.decoder.segmentation_head.register_forward_hook(lambda module, args, out: seen.append(out))
    with torch.no_grad():
        logits = model(image(1, BANDS, 29, 31))
    assert seen[0].shape[-2:] == (8, 8)
    torch.testing.assert_close(logits, F.interpolate(seen[0], (29, 31), mode="bilinear", align_corners=False))


def test_dcswin_stretches_corner_to_corner() -> None:
    model, x = build("dcswin_tiny").eval(), image(1, BANDS, 32, 64)
    with torch.no_grad():
        coarse = model.decoder(model.backbone(x))
        torch.testing.assert_close(model(x), F.interpolate(coarse, (32, 64), mode="bilinear", align_corners=True))
