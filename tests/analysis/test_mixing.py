"""What the mixers vary, and the model without it, against the operator's definition."""

from __future__ import annotations

import pytest
import torch

from crispseg.analysis.mixing import Liveliness, at_its_mean, calibrate_constant, mixers, variance_ratio
from crispseg.ops import Gates, Rule, ncssd
from tests.analysis.conftest import make_model
from tests.evaluate.toy import colour_model
from tests.ops.nc_ssd.test_ncssd import make_gates, make_inputs


@pytest.mark.parametrize("skip", ["after", "before"])
def test_a_constant_is_calibrated_as_the_operator_does(skip: str) -> None:
    (v, b, c, rho, d), values = make_inputs()
    b, c = torch.zeros_like(b), torch.zeros_like(c)  # uniform attention: y^ is its mean
    gates, rule = make_gates(values), Rule("normalized", "row", skip)
    mean = ncssd(v, b, c, rho, torch.zeros_like(d), Gates(residual=gates.residual), rule).mean(1, keepdim=True)
    found = calibrate_constant(mean, d[:, None] * v, gates, skip == "before")
    torch.testing.assert_close(found, ncssd(v, b, c, rho, d, gates, rule, backend="reference"))


@pytest.mark.parametrize("options", [{"fusion": "raw", "dco": {"skip": "before"}}, {"fusion": "selective"}, {}])
def test_at_its_mean_is_the_model_with_uniform_attention_and_back(options: dict[str, object]) -> None:
    model, image = make_model(**options), torch.randn(1, 3, 40, 56)
    with torch.no_grad():
        before = model(image)
        with at_its_mean(model):
            changed = model(image)
        assert torch.equal(model(image), before)
    assert changed.shape == before.shape and not torch.equal(changed, before)


def test_a_fresh_mixer_sleeps_by_the_papers_fusion_and_wakes_by_ours() -> None:
    ratios = {}
    for fusion in ("normalized", "selective"):
        watched = Liveliness()
        model = make_model(fusion=fusion)
        with torch.no_grad(), watched.watching(model):
            model(torch.randn(1, 3, 64, 64))
        ratios[fusion] = max(watched.mean().values())
    assert ratios["selective"] > 100 * ratios["normalized"]


def test_the_ratio_is_that_of_the_variances() -> None:
    model = make_model(fusion="raw")
    name, mixer = next(iter(mixers(model).items()))
    x = torch.randn(1, 6, 5, 32)
    with torch.no_grad():
        v, b, c, rho = mixer.tokens(mixer.convolve(mixer.project(x)[1]), mixer.project(x)[2])
        y = torch.einsum("bin,bjn,bjhp->bihp", c, b, rho[..., None] * v)
        expected = y.double().var(1, correction=0).sum() / (mixer.D[:, None] * v).double().var(1, correction=0).sum()
        assert variance_ratio(mixer, x) == pytest.approx(float(expected), rel=1e-4)
    watched = Liveliness()
    with torch.no_grad(), watched.watching(model):
        model(torch.randn(1, 3, 32, 32))
        model(torch.randn(1, 3, 32, 32))
    assert set(watched.mean()) == set(mixers(model)) and len(watched.ratios[name]) == 2
    assert not mixers(colour_model())
