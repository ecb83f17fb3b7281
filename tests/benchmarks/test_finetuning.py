"""Fine-tuned runs beside an ablation's: which of its runs count, and with whom they are paired."""

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
from finetuning_beside import from_scratch, is_crisp, main  # noqa: E402

ALL = {"residual": True, "highpass": True, "rebalance": True}
OPTIONS = {"fusion": "normalized", "matching": "max", "prototypes": 3, "neck": "topdown", "dco": ALL}


def run(name="crisp_nano", protocol="dubai/own5", seed=1, miou=0.5, **options):
    model = {"name": name, "options": OPTIONS | options}
    about = {"model": model, "data": {"protocol": protocol}, "schedule": {"steps": 3000}, "seed": seed}
    return {"description": about, "result": {"last": {"mIoU": miou}}}


@pytest.mark.parametrize(
    "other",
    [{"fusion": "raw"}, {"matching": "lse"}, {"prototypes": 1}, {"dco": None}, {"dco": ALL | {"highpass": False}}],
)
def test_only_crisp_as_described_counts(other):
    assert is_crisp(run()) and not is_crisp(run(**other)) and not is_crisp(run("vssd_nano_upernet"))


def test_runs_are_paired_by_data_and_seed(tmp_path, capsys):
    tuned = [
        {"set": name, "model": "crisp_nano", "kind": "tuned750", "seed": seed, "mIoU": miou}
        for name, seed, miou in [("dubai", 1, 0.6), ("potsdam", 1, 0.7), ("potsdam", 2, 0.9)]
    ]
    (tmp_path / "tuned.json").write_text(json.dumps({"runs": tuned}))
    ablation = {"a": run(), "b": run(protocol=None, miou=0.4), "c": run(seed=2), "d": run(matching="lse", miou=0.1)}
    (tmp_path / "ablation.json").write_text(json.dumps({"runs": ablation}))
    main(str(tmp_path / "tuned.json"), str(tmp_path / "ablation.json"))
    said = capsys.readouterr().out
    assert "| dubai | 60.00 (tuned750) | 50.00 (scratch3000) | +10.00 | 1 |" in said
    assert "| potsdam | 70.00 (tuned750) | 40.00 (scratch3000) | +30.00 | 1 |" in said
    assert "| all pairs | 65.00 (tuned750) | 45.00 (scratch3000) | +20.00" in said


def test_a_run_from_scratch_stands_in_where_the_ablation_has_none(tmp_path, capsys):
    runs = [
        {"set": "dubai", "model": "crisp_nano", "kind": kind, "seed": seed, "mIoU": miou}
        for kind, seed, miou in [
            ("tuned750", 1, 0.6), ("tuned750", 2, 0.8), ("scratch3000", 1, 0.1), ("scratch3000", 2, 0.4),
            ("scratch1000", 2, 0.2),
        ]
    ]  # fmt: skip
    (tmp_path / "tuned.json").write_text(json.dumps({"runs": runs}))
    (tmp_path / "ablation.json").write_text(json.dumps({"runs": {"a": run(seed=1, miou=0.5)}}))
    main(str(tmp_path / "tuned.json"), str(tmp_path / "ablation.json"))
    said = capsys.readouterr().out
    assert "| dubai | 70.00 (tuned750) | 45.00 (scratch3000) | +25.00" in said  # 60 to the ablation's 50, 80 to 40
    assert "scratch1000" not in said


def test_a_run_keeps_its_seed_and_length():
    found = from_scratch(run(protocol="vaihingen_fragment/fold2", seed=3))
    assert (found["set"], found["kind"], found["seed"]) == ("vaihingen-fold-2", "scratch3000", 3)
