"""The table of what is awake, against means taken by hand; and an ablation's own model looked at."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import liveliness

from crispseg.cli.main import main
from tests.train import tiny


def test_means_of_what_runs_have():
    runs = [
        {"row": "a", "mIoU": 50.0, "gates off": 49.0, "awake": 1e-3, "travelled": 0.02, "alive": 0.5},
        {"row": "a", "mIoU": 51.0, "awake": 3e-3, "travelled": None, "alive": 1.0},
        {"row": "b", "mIoU": 40.0},
    ]
    lines = liveliness.report(["a", "b", "none"], runs).splitlines()
    assert lines[-2:] == ["| a | 2 | 50.50 | 49.00 |  | 0.002 | 0.02 | 75 % |", "| b | 1 | 40.00 |  |  |  |  |  |"]


def test_a_model_of_an_ablation(tmp_path, capsys):
    data = tiny.make_folder(tmp_path / "squares")
    table = tmp_path / "table.yaml"
    table.write_text(
        f"title: one\nrows:\n  - name: only\n    set: {{model: {{name: crisp_nano, options: {tiny.OPTIONS}}}}}\n"
    )
    words = ["schedule.steps=2", "schedule.warmup=1", "batch_size=2", "crop=32", "model.weights=none"]
    out = tmp_path / "out"
    assert main(["ablate", str(table), *words, "--data", str(data), "--out", str(out), "--no-bench", "-q"]) == 0
    found = tmp_path / "found.json"
    assert liveliness.main([str(out), str(table), *words, "--data", str(data), "--out", str(found)]) == 0
    assert "| only | 1 |" in found.with_suffix(".md").read_text()
    assert '"shares"' in found.read_text() and '"y^ at its mean"' in found.read_text()
