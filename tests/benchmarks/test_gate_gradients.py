"""The script that measures how exact gradients are, on what a CPU has: torch's operations, small sizes."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_gradient_is_measured_and_right(tmp_path):
    script, out = ROOT / "benchmarks/gate_gradients.py", tmp_path / "found.json"
    words = ["--device", "cpu", "--largest", "100", "--seeds", "2", "--out", str(out)]
    subprocess.run([sys.executable, script, *words], check=True, capture_output=True)
    found, kept = (
        json.loads(out.read_text()),
        json.loads((ROOT / "benchmarks/results/gate_gradients_h200.json").read_text()),
    )
    assert list(found["torch"]) == list(kept["triton"]) and len(found["torch"]) == 9
    assert all(0 < error < 1e-4 for error, _ in found["torch"].values())
    assert all(error < 1e-5 for error, _ in kept["triton"].values())
