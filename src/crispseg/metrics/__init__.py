"""Scores of label maps and features (confusion, boundaries, spectrum, calibration, temperature); two models compared.

Pure functions, and accumulators whose sums add up over images and processes. docs/reference/metrics.md defines each
score.
"""

from crispseg.metrics.accumulate import Accumulator
from crispseg.metrics.bootstrap import Comparison, compare_bf, compare_miou, paired_bootstrap
from crispseg.metrics.boundary import BoundaryCounts, BoundaryScores, boundary_counts
from crispseg.metrics.calibration import CalibrationCounts, Reliability
from crispseg.metrics.confusion import ConfusionMatrix, ConfusionScores, confusion_counts
from crispseg.metrics.spectrum import (
    SpectralMean,
    SpectralProbe,
    band_energies,
    spectral_ratio,
    tokens_to_map,
)
from crispseg.metrics.temperature import TemperatureFit

__all__ = [
    "Accumulator",
    "BoundaryCounts",
    "BoundaryScores",
    "CalibrationCounts",
    "Comparison",
    "ConfusionMatrix",
    "ConfusionScores",
    "Reliability",
    "SpectralMean",
    "SpectralProbe",
    "TemperatureFit",
    "band_energies",
    "boundary_counts",
    "compare_bf",
    "compare_miou",
    "confusion_counts",
    "paired_bootstrap",
    "spectral_ratio",
    "tokens_to_map",
]
