"""The loop on a GPU: it trains, validates, saves and resumes in both half precisions."""

import pytest
import torch

from crispseg.errors import UserError
from crispseg.train import loop
from crispseg.train.config import config_from
from crispseg.train.log import read_metrics
from tests.train import tiny

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_trains_and_resumes(folder, tmp_path, precision, monkeypatch):
    values = tiny.settings(folder, tmp_path / "run", device="cuda", precision=precision, workers=2, ema=0.9)
    monkeypatch.setattr(loop.Trainer, "_asked_to_stop", lambda self: self.done == 7)
    assert not loop.train(config_from(values)).finished
    monkeypatch.undo()
    assert loop.resume(tmp_path / "run").finished
    losses = [r["train/loss"] for r in read_metrics(tmp_path / "run" / "metrics.jsonl") if "train/loss" in r]
    assert losses[-1] < losses[0]


def test_a_bad_loss_is_noticed_before_anything_is_saved(folder, tmp_path):
    values = tiny.settings(folder, tmp_path / "run", device="cuda", optimizer={"lr": 1e30, "clip": 0})
    with pytest.raises(UserError, match=r"not a finite number at step \d+, in the batch of .*scene"):
        loop.train(config_from(values))
    assert not (tmp_path / "run" / "last.pt").exists()
