"""The loop on a GPU: it trains, validates, saves and resumes in both half precisions."""

import pytest
import torch

import crispseg
from crispseg.errors import UserError
from crispseg.models.base import ModelInfo
from crispseg.train import loop
from crispseg.train.config import config_from
from crispseg.train.distributed import Processes
from crispseg.train.log import read_metrics
from crispseg.train.step import Part, Stepper
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


def test_a_recorded_step_trains_like_one_run_kernel_by_kernel():
    """Losses, weights and running statistics after a few steps. (Paths dropped at random would be others, and
    in half precision rounding grows from step to step.)"""

    def trained(graph):
        torch.manual_seed(0)
        config = config_from(
            {"graph": graph, "precision": "fp32", "optimizer": {"lr": 1e-4}, "schedule": {"steps": 9, "warmup": 0}}
        )
        model = crispseg.create_model("crisp_nano", num_classes=3, in_channels=3, drop_path=0.0)
        model.info = ModelInfo(mean=(0.5,) * 3, std=(2.0,) * 3)
        stepper = Stepper(model, config, Processes(torch.device("cuda")))
        draws = torch.Generator().manual_seed(1)
        losses = []
        for step in range(6):
            labels = torch.randint(0, 3, (2, 64, 64), generator=draws)
            labels[0, : 8 * step] = 255
            part = Part(torch.randn(2, 3, 64, 64, generator=draws), labels, ["a", "b"])
            losses.append(stepper.step(step, [part])["loss"].item())
        assert (stepper.graphed is not None) is graph
        return losses, {name: x.float().cpu() for name, x in model.state_dict().items()}

    losses, weights = trained(graph=True)
    plain_losses, plain_weights = trained(graph=False)
    assert losses == pytest.approx(plain_losses, rel=1e-2)
    for name, value in weights.items():
        torch.testing.assert_close(
            value, plain_weights[name], rtol=0.05, atol=2e-3, msg=lambda text, name=name: f"{name}: {text}"
        )
