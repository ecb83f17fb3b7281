"""`benchmarks/compare_trees.py` on this source twice, on a CPU."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_tree_beside_itself(tmp_path):
    out = tmp_path / "trees.json"
    command = [sys.executable, "benchmarks/compare_trees.py", "before=src", "now=src", "--models", "crisp_nano"]
    given = ["--batch", "1", "--size", "32", "--device", "cpu", "--out", str(out)]
    done = subprocess.run([*command, *given], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    values = json.loads(out.read_text())
    assert values["difference"] == {"before": 0.0, "now": 0.0}
    assert all(ms["crisp_nano, batch 1"] > 0 for ms in values["milliseconds"].values())
    assert len(values["rounds"]["now"]) == 7
    assert "| crisp_nano, batch 1 |" in out.with_suffix(".md").read_text()


def test_a_tree_that_computes_something_else_is_not_taken(tmp_path):
    """Another version of the source: its networks answer with other logits."""
    other = tmp_path / "crispseg"
    other.mkdir()
    (other / "__init__.py").write_text(OTHER)
    given = ["--models", "crisp_nano", "--batch", "1", "--size", "32", "--device", "cpu"]
    command = [sys.executable, "benchmarks/compare_trees.py", f"before={tmp_path}", "now=src"]
    done = subprocess.run([*command, *given], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "before 1.0e+00" in done.stdout


OTHER = """
import torch
class Silent(torch.nn.Module):
    def fused(self, precision, graphs): return self
    def forward(self, image): return image.new_zeros(len(image), 6, *image.shape[-2:])
def create_model(name, num_classes): return Silent()
"""
