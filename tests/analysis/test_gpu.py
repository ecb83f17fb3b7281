"""The same analysis on the accelerator."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from crispseg.analysis import Settings, analyze
from crispseg.data.folder import Folder
from tests.analysis.conftest import make_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_cuda_finds_what_the_cpu_finds(folder: Folder) -> None:
    cpu, gpu = (
        analyze(make_model(), folder, "val", settings=Settings(images=2, pictures=1), device=device)
        for device in ("cpu", "cuda")
    )
    assert cpu.prototypes is not None and gpu.prototypes is not None
    np.testing.assert_allclose(gpu.prototypes.cosines, cpu.prototypes.cosines, atol=2e-2)
    np.testing.assert_allclose(gpu.prototypes.shares, cpu.prototypes.shares, atol=2e-2)
    for label, variant in cpu.variants.items():
        other = gpu.variants[label]
        total = variant.mistakes.all.sum()
        assert np.abs(variant.mistakes.all - other.mistakes.all).sum() < 0.02 * total
        assert variant.spectrum is not None and other.spectrum is not None
        for block, values in variant.spectrum.mixer.items():
            np.testing.assert_allclose(other.spectrum.mixer[block], values, rtol=5e-2)
