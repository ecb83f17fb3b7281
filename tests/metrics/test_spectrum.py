"""The spectral ratio against waves of known frequency, Parseval, and numpy's transform in a loop."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from crispseg.errors import UserError
from crispseg.metrics import SpectralMean, SpectralProbe, band_energies, spectral_ratio, tokens_to_map
from crispseg.metrics.spectrum import radial_frequency

sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))


def wave(height, width, ky, kx, amplitude=1.0):
    """A wave of ky cycles down and kx across, as a map (1, 1, H, W); it lies at one frequency and its mirror."""
    y, x = torch.meshgrid(
        torch.arange(height, dtype=torch.float64), torch.arange(width, dtype=torch.float64), indexing="ij"
    )
    return amplitude * torch.cos(2 * math.pi * (ky * y / height + kx * x / width))[None, None]


def loop_energies(features, cutoff):
    """Both energies of one image (C, H, W) by numpy, coefficient by coefficient."""
    high = low = 0.0
    _, height, width = features.shape
    for channel in features:
        spectrum = np.fft.fft2(channel) / math.sqrt(height * width)
        for v in range(height):
            for u in range(width):
                cycles = math.hypot(min(v, height - v) / height, min(u, width - u) / width)  # per pixel
                if cycles / 0.5 > cutoff:
                    high += abs(spectrum[v, u]) ** 2
                else:
                    low += abs(spectrum[v, u]) ** 2
    return high, low


@settings(max_examples=40)
@given(sizes, st.integers(1, 3), st.sampled_from([0.3, 0.55, 0.8]), st.integers(0, 99))
def test_energies_are_those_of_a_loop_and_add_up_to_the_squares(size, channels, cutoff, seed):
    features = torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(seed)).double()
    high, low = band_energies(features, cutoff)
    np.testing.assert_allclose(high + low, features.square().sum(dim=(1, 2, 3)))  # Parseval
    for image, found in zip(features, zip(high, low, strict=True), strict=True):
        np.testing.assert_allclose(found, loop_energies(image.numpy(), cutoff), atol=1e-12)


@pytest.mark.parametrize(("ky", "kx"), [(0, 3), (5, 0), (3, 3), (0, 8), (7, 2), (12, 10), (16, 0)])
@pytest.mark.parametrize("cutoff", [0.25, 0.5, 0.75])
def test_a_wave_is_on_the_side_of_the_cutoff_its_frequency_says(ky, kx, cutoff):
    height, width = 32, 48
    features = wave(height, width, ky, kx)
    frequency = math.hypot(ky / (height / 2), kx / (width / 2))  # Nyquist is half the size in cycles
    high, low = band_energies(features, cutoff)
    total = features.square().sum()
    expected = (total, 0.0) if frequency > cutoff else (0.0, total)
    np.testing.assert_allclose((high.item(), low.item()), expected, atol=1e-9)


def test_the_ratio_of_two_waves_is_the_ratio_of_their_squared_amplitudes():
    features = wave(32, 32, 2, 1, amplitude=4) + wave(32, 32, 11, 9, amplitude=3)
    assert spectral_ratio(features).item() == pytest.approx(9 / 16)


def test_the_mean_stays_in_the_low_band():
    features = wave(16, 16, 7, 0)
    assert spectral_ratio(features + 5).item() == pytest.approx(0.5 / 25)
    assert spectral_ratio(torch.full((1, 2, 8, 8), 3.0)).item() == 0
    assert math.isnan(spectral_ratio(torch.zeros(1, 1, 4, 4)).item())


def test_the_cutoff_itself_is_low():
    assert radial_frequency(16, 16)[4, 0] == 0.5
    high, low = band_energies(wave(16, 16, 4, 0), 0.5)
    assert high.item() == pytest.approx(0) and low.item() == pytest.approx(128)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_types_neither_overflow_nor_drift(dtype):
    features = (1e4 * torch.randn(2, 8, 33, 40, generator=torch.Generator().manual_seed(0))).to(dtype)
    exact = spectral_ratio(features.double())
    torch.testing.assert_close(spectral_ratio(features).double(), exact, rtol=1e-5, atol=0)


def test_turns_and_scale_do_not_matter():
    features = torch.randn(2, 3, 12, 17, dtype=torch.float64)
    ratio = spectral_ratio(features)
    for other in (features.flip(-1), features.transpose(-1, -2), -3 * features, features.roll(5, -1)):
        torch.testing.assert_close(spectral_ratio(other), ratio)


def test_smoothing_lowers_the_ratio():
    features = torch.randn(1, 4, 32, 32)
    smooth = nn.functional.avg_pool2d(features, 3, stride=1, padding=1)
    assert spectral_ratio(smooth) < 0.5 * spectral_ratio(features)


def test_a_probe_averages_over_images_and_lets_go():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
    batches = [torch.randn(2, 3, 8, 8), torch.randn(3, 3, 16, 12)]
    with SpectralProbe({"conv": model[0], "relu": model[1]}, cutoff=0.4) as probe:
        for batch in batches:
            model(batch)
    model(torch.randn(1, 3, 8, 8))  # no longer watched
    with torch.no_grad():
        expected = torch.cat([spectral_ratio(model[0](batch), 0.4) for batch in batches])
    assert probe.mean.ratios()["conv"] == pytest.approx(expected.double().mean().item())
    assert probe.mean.sums["images"].tolist() == [5, 5]
    assert not model[0]._forward_hooks and not model[1]._forward_hooks


def test_a_probe_lets_go_after_an_error_too():
    model = nn.Conv2d(3, 4, 3)
    with pytest.raises(ZeroDivisionError), SpectralProbe({"conv": model}):
        raise ZeroDivisionError
    assert not model._forward_hooks


def test_tokens_are_laid_out_by_the_callable():
    model = nn.Linear(3, 5)
    features = torch.randn(2, 3, 4, 6)
    tokens = features.flatten(2).transpose(1, 2)  # (B, L, C), row-major
    assert torch.equal(tokens_to_map(tokens, 4, 6), features)
    with SpectralProbe({"mix": model}, to_map=lambda name, inputs, output: tokens_to_map(output, 4, 6)) as probe:
        output = model(tokens)
    expected = spectral_ratio(output.transpose(1, 2).reshape(2, 5, 4, 6)).mean().item()
    assert probe.mean.ratios() == {"mix": pytest.approx(expected)}


def test_means_add_up_and_go_through_json():
    one, other = SpectralMean(("a", "b")), SpectralMean(("a", "b"))
    features = torch.randn(3, 2, 8, 8)
    one.update("a", features[:1])
    other.update("a", features[1:])
    both = one + SpectralMean.from_dict(json.loads(json.dumps(other.to_dict())))
    assert both.ratios()["a"] == pytest.approx(spectral_ratio(features).mean().item())
    assert math.isnan(both.ratios()["b"])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: spectral_ratio(torch.zeros(3, 4, 4)), r"must be \(B, C, H, W\)"),
        (lambda: spectral_ratio(torch.zeros(1, 1, 4, 4), cutoff=1.5), "cut-off 1.5"),
        (lambda: tokens_to_map(torch.zeros(1, 7, 2), 2, 3), "7 tokens do not fill a map of 2 x 3"),
        (lambda: _probe_tokens(), "'mix' puts out"),
    ],
)
def test_mistakes_are_named(call, words):
    with pytest.raises(UserError, match=words):
        call()


def _probe_tokens():
    model = nn.Linear(3, 5)
    with SpectralProbe({"mix": model}):
        model(torch.zeros(1, 6, 3))
