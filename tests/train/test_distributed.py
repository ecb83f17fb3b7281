"""Two processes are one process with the whole batch."""

import copy
import json
import os
import socket
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import crispseg
from crispseg.errors import UserError
from crispseg.models.base import ModelInfo
from crispseg.train.config import config_from
from crispseg.train.distributed import Processes, SharedBatchNorm2d, join_processes, share_batch_norm
from crispseg.train.step import Part, Stepper
from crispseg.train.watch import FiniteWatch
from tests.train import tiny


def batch():
    draws = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (4, 32, 32), generator=draws)
    labels[1, :20] = 255
    labels[2, :, 5:] = 255
    return Part(torch.randn(4, 3, 32, 32, generator=draws), labels, list("abcd"))


def gradients(processes, parts, **values):
    """Gradients and BatchNorm statistics of one step of the real model."""
    torch.manual_seed(0)
    model = crispseg.create_model("crisp_nano", num_classes=3, drop_path=0.0, **tiny.OPTIONS)
    model.info = ModelInfo(mean=(0.0,) * 3, std=(1.0,) * 3)
    config = config_from({"optimizer": {"lr": 1e-3}, "schedule": {"steps": 5, "warmup": 0}, **values})
    made = Stepper(model, config, processes)
    kept = {}

    def keep(steps_done):
        kept.update({name: p.grad.clone() for name, p in made.model.named_parameters()})
        kept.update({name: b.clone() for name, b in made.model.named_buffers()})
        return torch.zeros(())

    made.update = keep
    said = made.step(0, parts)
    loss = processes.sum_(said["loss"].clone()) / processes.count
    return kept, loss


def worker(rank, port, out):
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    part = batch()
    with join_processes("cpu") as processes:
        own = Part(part.images[rank::2], part.labels[rank::2], part.names[rank::2])
        kept, loss = gradients(processes, [own])
        assert processes.gather(rank) == [0, 1]
        assert processes.from_first(f"said by {rank}") == "said by 0"
        assert processes.any(rank == 1) and not processes.any(False)
        message = refusal(processes, rank)
        torch.save({"kept": kept, "loss": loss, "message": message}, f"{out}/{rank}.pt")


def refusal(processes, rank):
    """Only the second process meets the bad batch; both must hear of it."""
    watch = FiniteWatch(processes)
    watch.note(3, torch.tensor(float("nan") if rank == 1 else 1.0), [f"file{rank}.png"])
    try:
        watch.verify()
    except UserError as error:
        return str(error)
    return ""


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    out = tmp_path_factory.mktemp("two")
    mp.spawn(worker, args=(free_port(), str(out)), nprocs=2)
    assert not dist.is_initialized()
    return [torch.load(out / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def test_two_processes_give_the_gradients_of_one_with_twice_the_batch(two):
    expected, loss = gradients(Processes(torch.device("cpu")), [batch()])
    for found in two:
        torch.testing.assert_close(found["loss"], loss)
        for name, value in expected.items():
            apart = (found["kept"][name] - value).abs().max().item()
            assert apart <= 1e-5 + 2e-4 * value.abs().max().item(), name  # float32's rounding, summed in another order


@pytest.fixture
def group_of_one(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", [{}, {"affine": False}, {"momentum": None}, {"track_running_stats": False}])
def test_a_shared_batch_norm_is_torchs_of_the_same_kind(group_of_one, kind):
    """The head's `centred` has no gain, and somebody's own network may hold any of these."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.BatchNorm2d(3, **kind))
    shared = share_batch_norm(copy.deepcopy(plain), torch.device("cpu"))
    assert type(shared[0]) is SharedBatchNorm2d
    for _ in range(3):
        x = torch.randn(2, 3, 5, 4) * 3 + 1
        torch.testing.assert_close(shared(x), plain(x))
    torch.testing.assert_close(shared.state_dict(), plain.state_dict())
    torch.testing.assert_close(shared.eval()(x), plain.eval()(x))


def left_alone(rank, port, out):
    """The first process is refused something, as a run's folder that is taken, while the other waits for it."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    try:
        with join_processes("cpu") as processes:
            if processes.first:
                raise UserError("the folder is taken")
            processes.from_first(None)
    except UserError as error:
        (out / str(rank)).write_text(str(error))


def test_a_process_whose_neighbour_ends_says_so_in_a_sentence(tmp_path):
    mp.spawn(left_alone, args=(free_port(), tmp_path), nprocs=2)
    assert (tmp_path / "0").read_text() == "the folder is taken"
    assert (tmp_path / "1").read_text().startswith("another process of this run has ended")


def test_what_is_frozen_of_a_batch_norm_stays_frozen():
    frozen = nn.Sequential(nn.BatchNorm2d(3)).requires_grad_(False)
    assert not any(p.requires_grad for p in share_batch_norm(frozen, torch.device("cpu")).parameters())


def test_every_process_stops_at_a_bad_batch_and_names_it(two):
    for found in two:
        assert "file1.png" in found["message"] and "step 3" in found["message"]
        assert "file0.png" not in found["message"]


def test_torchrun_trains_as_one_process_does(folder, tmp_path):
    """From the command line, with validation shared out too: the same losses and the same scores."""
    values = tiny.settings(folder, tmp_path / "run", schedule={"steps": 4}, val_every=2, log_every=1)
    words = ["model.options.drop_path=0", "schedule.steps=4", "val_every=2", "log_every=1", "batch_size=4", "crop=32"]
    words += [f"model.options.{key}={json.dumps(value)}" for key, value in tiny.OPTIONS.items()]
    words += [f"data={folder}", "model=crisp_nano", "device=cpu", f"optimizer.lr={values['optimizer']['lr']}"]
    results = []
    for name, launcher in (
        ("one", [sys.executable]),
        ("two", [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]),
    ):
        out = tmp_path / name
        command = [*launcher, "-m", "crispseg.cli.main", "train", *words, f"out={out}"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
        records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        results.append([(r["step"], r[k]) for r in records for k in ("train/loss", "val/mIoU") if k in r])
    assert len(results[0]) == len(results[1]) == 6
    for (step, a), (same_step, b) in zip(*results, strict=True):
        assert step == same_step
        assert a == pytest.approx(b, rel=0.02), step  # Adam turns rounding into small differences
