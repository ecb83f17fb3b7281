"""The loop on a GPU: it trains, validates, saves and resumes in both half precisions. Gradients of a whole network with
our kernels: alone, compiled, and shared by two processes."""

import copy
import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import crispseg
from crispseg import ops
from crispseg.errors import UserError
from crispseg.losses import LossConfig, segmentation_loss
from crispseg.models.base import ModelInfo
from crispseg.train import loop
from crispseg.train.config import config_from
from crispseg.train.distributed import Processes
from crispseg.train.log import read_metrics
from crispseg.train.step import Part, Stepper
from tests.conftest import relative_error
from tests.train import test_distributed as distributed
from tests.train import tiny

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_trains_and_resumes(folder, tmp_path, precision, monkeypatch):
    values = tiny.settings(folder, tmp_path / "run", device="cuda", precision=precision, workers=2, ema=0.9)
    monkeypatch.setattr(loop.Trainer, "asked_to_stop", lambda self: self.done == 7)
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


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_gradients_of_a_network_are_as_exact_as_the_formulas(compiled, dtype):
    """Against float64, where rounding grows from layer to layer whoever computes them."""
    torch.manual_seed(0)
    model = crispseg.create_model("crisp_nano", num_classes=5, drop_path=0.0).cuda().train()
    images, target = torch.randn(2, 3, 96, 128, device="cuda"), torch.randint(0, 5, (2, 96, 128), device="cuda")

    def gradients(dtype, compiled=False):
        trained = copy.deepcopy(model).to(torch.float64 if dtype == torch.float64 else torch.float32)
        run = torch.compile(trained, fullgraph=True) if compiled else trained
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            output = run(images.to(next(trained.parameters()).dtype))
        segmentation_loss(output, target, LossConfig())["total"].backward()
        return torch.cat([p.grad.flatten() for p in trained.parameters() if p.grad is not None])

    found = gradients(dtype, compiled)
    with ops.only("torch"):
        truth, formulas = gradients(torch.float64), gradients(dtype)
    assert relative_error(found, truth) < 2 * relative_error(formulas, truth) + 1e-5


def shared_worker(rank, port, out):
    """One of two processes on the same GPU, which NCCL refuses; Gloo takes gradients through the host."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=timedelta(minutes=5))
    processes = Processes(torch.device("cuda", 0), rank, 2, dist.group.WORLD)
    part = distributed.batch()
    own = Part(part.images[rank::2], part.labels[rank::2], part.names[rank::2])
    for precision in ("fp32", "bf16"):
        torch.save(exact_gradients(processes, own, precision), f"{out}/{precision}{rank}.pt")
    dist.destroy_process_group()


def exact_gradients(processes, part, precision):
    """In one tensor."""
    torch.backends.cudnn.allow_tf32 = False
    kept, _ = distributed.gradients(processes, [part], precision=precision, graph=False)
    return torch.cat([value.flatten().double().cpu() for value in kept.values()])


def test_two_processes_on_a_gpu_give_the_gradients_of_one_with_twice_the_batch(tmp_path):
    mp.spawn(shared_worker, args=(distributed.free_port(), str(tmp_path)), nprocs=2)
    one = {
        name: exact_gradients(Processes(torch.device("cuda", 0)), distributed.batch(), name)
        for name in ("fp32", "bf16")
    }
    for rank in (0, 1):
        two = {name: torch.load(tmp_path / f"{name}{rank}.pt", weights_only=True) for name in one}
        assert relative_error(two["fp32"], one["fp32"]) < 1e-4
        assert relative_error(two["bf16"], one["fp32"]) < 2 * relative_error(one["bf16"], one["fp32"]) + 1e-4
