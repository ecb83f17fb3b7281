import itertools

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import crispseg
from crispseg.errors import UserError
from crispseg.models.layers import DropPath
from crispseg.models.vssd import VARIANTS, NCSSDMixer, backbone_config
from tests.conftest import relative_error
from tests.models import public_vssd

PUBLIC = {"fusion": "raw", "dco": False, "last_stage": "attention"}
SMALL = {"width": 8, "depths": (1, 1, 2, 1), "heads": (1, 2, 2, 4), "state": 4}


def counts(**options):
    with torch.device("meta"):
        backbone = crispseg.create_backbone("vssd_tiny", **options).eval()
    with FlopCounterMode(display=False) as flops:
        backbone(torch.empty(1, 3, 512, 512, device="meta"))
    return sum(p.numel() for p in backbone.parameters()), flops.get_total_flops() / 2e9


def test_exact_counts_of_tiny():
    parameters, gmacs = counts(**PUBLIC)
    assert parameters == 23_758_620
    assert gmacs == pytest.approx(24.580, abs=5e-4)
    parameters, gmacs = counts(fusion="raw", dco=False)
    assert parameters == 26_203_100
    assert gmacs == pytest.approx(25.069, abs=5e-4)
    parameters, _ = counts()
    assert parameters == 26_203_100 + 2_600  # DCO: 2 * sum(H) + 2 * 64 * blocks


def randomised(backbone):
    """Give every tensor a value of its own, so that no zero bias or unit norm hides a mistake."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in backbone.state_dict().items():
        if name.endswith("running_var"):
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
        elif tensor.is_floating_point() and not name.endswith(("A_log", "dt_bias", "in_proj.weight")):
            tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator))
    return backbone


@pytest.mark.parametrize("last_stage", ["attention", "ncssd"])
@pytest.mark.parametrize("size", [(64, 64), (51, 37)])
def test_features_are_the_public_models(last_stage, size):
    options = PUBLIC | {"last_stage": last_stage}
    backbone = randomised(crispseg.create_backbone("vssd_micro", **options)).eval()
    config = backbone.config
    image = torch.randn(2, 3, *size)
    with torch.no_grad():
        found = backbone(image)
        weights = {name: tensor.double() for name, tensor in backbone.state_dict().items()}
        truth = public_vssd.features(
            weights, image.double(), config.depths, config.heads, config.state, last_stage == "attention"
        )
    for stage, (f, t) in enumerate(zip(found, truth, strict=True)):
        assert f.shape == t.shape
        assert relative_error(f, t) < 1e-5, f"stage {stage}"


@pytest.mark.parametrize("size", [128, 512])
def test_default_gates_stay_near_identity_at_any_size(size):
    check_near_identity("vssd_tiny", size)


def test_default_gates_stay_near_identity_at_1024():
    check_near_identity("vssd_nano", 1024)


def check_near_identity(name, size):
    with_dco = crispseg.create_backbone(name).eval()
    without = crispseg.create_backbone(name, dco=False).eval()
    without.load_state_dict({k: v for k, v in with_dco.state_dict().items() if ".dco." not in k})
    image = torch.rand(1, 3, size, size) * 2 - 1
    with torch.no_grad():
        for a, b in zip(with_dco(image), without(image), strict=True):
            assert 0 < relative_error(a, b) < 0.05


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (33, 65)])
@pytest.mark.parametrize("bands", [1, 7])
def test_feature_sizes_round_up(size, bands):
    backbone = crispseg.create_backbone("vssd_nano", in_channels=bands, **SMALL).eval()
    for i, feature in enumerate(backbone(torch.randn(1, bands, *size))):
        stride = 4 * 2**i
        assert feature.shape == (1, 8 * 2**i, -(-size[0] // stride), -(-size[1] // stride))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("last_stage", ["ncssd", "attention"])
def test_every_variant_builds(name, last_stage):
    with torch.device("meta"):
        backbone = crispseg.create_backbone(name, last_stage=last_stage)
    widths = [f.shape[1] for f in backbone(torch.empty(1, 3, 64, 64, device="meta"))]
    assert widths == [VARIANTS[name].width * 2**i for i in range(4)]


def test_checkpointing_gives_the_same_gradients():
    image = torch.randn(1, 3, 64, 64)
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        backbone = crispseg.create_backbone("vssd_nano", checkpointing=checkpointing, drop_path=0.5, **SMALL).train()
        torch.manual_seed(1)
        sum(f.square().mean() for f in backbone(image)).backward()
        gradients.append([p.grad for p in backbone.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_drop_path_drops_whole_samples_and_keeps_the_mean():
    layer = DropPath(0.25).train()
    x = torch.ones(4000, 2, 3)
    y = layer(x)
    kept = (y != 0).flatten(1)
    assert (kept.all(1) | ~kept.any(1)).all()
    assert y.mean().item() == pytest.approx(1.0, abs=0.05)
    assert torch.equal(layer.eval()(x), x)


def test_drop_path_adds_what_it_keeps():
    layer = DropPath(0.4).train()
    x, branch = torch.randn(9, 2, 3, 4), torch.randn(9, 2, 3, 4)
    torch.manual_seed(5)
    keep = torch.rand(9, 1, 1, 1) >= 0.4
    torch.manual_seed(5)
    found = layer.add(x, branch)
    assert 0 < keep.sum() < 9
    torch.testing.assert_close(found, torch.where(keep, x + branch / 0.6, x))
    assert torch.equal(layer.eval().add(x, branch), x + branch)


def test_a_projection_widened_for_speed_gives_the_same(monkeypatch):
    mixer = NCSSDMixer(8, 2, backbone_config("vssd_tiny")).double()
    x = torch.randn(1, 3, 4, 8, dtype=torch.float64)
    expected = mixer.project(x)
    (wanted,) = torch.autograd.grad(sum(y.square().sum() for y in expected), mixer.in_proj.weight)
    monkeypatch.setattr("crispseg.models.vssd._in_half_precision_on_cuda", lambda x: True)
    found = mixer.project(x)
    assert found[0].stride(-2) % 8 == 0
    assert mixer.in_proj.out_features % 8 != 0
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e)
    (gradient,) = torch.autograd.grad(sum(y.square().sum() for y in found), mixer.in_proj.weight)
    torch.testing.assert_close(gradient, wanted)


def test_initial_gains_and_steps():
    mixer = NCSSDMixer(64, 2, backbone_config("vssd_tiny"))
    dt = torch.nn.functional.softplus(mixer.dt_bias)
    assert ((dt >= 1e-4) & (dt <= 0.1 + 1e-6)).all()
    assert ((mixer.A_log.exp() >= 1) & (mixer.A_log.exp() <= 16)).all()
    assert torch.equal(mixer.D, torch.ones(2))


def test_clear_errors():
    with pytest.raises(UserError, match="unknown backbone 'vssd_tny'; did you mean 'vssd_tiny'"):
        crispseg.create_backbone("vssd_tny")
    with pytest.raises(UserError, match="unknown config key 'fuson'; did you mean 'fusion'"):
        crispseg.create_backbone("vssd_nano", fuson="raw")
    with pytest.raises(UserError, match="fusion must be one of raw, normalized"):
        crispseg.create_backbone("vssd_nano", fusion="none")
    with pytest.raises(UserError, match="5 heads do not divide the inner width 64"):
        crispseg.create_backbone("vssd_nano", heads=(5, 2, 4, 8))


def test_dco_steps_are_switched_one_by_one():
    for residual, highpass, rebalance in itertools.product((False, True), repeat=3):
        dco = {"residual": residual, "highpass": highpass, "rebalance": rebalance}
        names = {
            n.split(".dco.")[1]
            for n, _ in crispseg.create_backbone("vssd_nano", dco=dco).named_parameters()
            if ".dco." in n
        }
        expected = {"lambda_"} if residual else set()
        expected |= {"omega"} if highpass else set()
        expected |= {"s", "t"} if rebalance else set()
        assert names == expected
