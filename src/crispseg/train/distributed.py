"""One process or many: joining the group that torchrun set up, agreeing, and BatchNorm over all processes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from crispseg.errors import UserError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Processes:
    """Who takes part. `control` carries what is said from host to host, beside the gradients."""

    device: torch.device
    rank: int = 0
    count: int = 1
    control: dist.ProcessGroup | None = None

    @property
    def first(self) -> bool:
        return self.rank == 0

    def any(self, flag: bool) -> bool:
        """Whether the flag is up in any process; every process gets the same answer."""
        if self.count == 1:
            return flag
        raised = torch.tensor([int(flag)])
        dist.all_reduce(raised, op=dist.ReduceOp.MAX, group=self.control)
        return bool(raised.item())

    def gather(self, value: T) -> list[T]:
        """Every process's value, in the order of the ranks."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value, group=self.control)
        return values

    def from_first(self, value: T) -> T:
        """The first process's value."""
        values: list[Any] = [value]
        if self.count > 1:
            dist.broadcast_object_list(values, src=0, group=self.control)
        return values[0]

    def wait(self) -> None:
        if self.count > 1:
            dist.barrier(group=self.control)

    def sum_(self, tensor: Tensor) -> Tensor:
        """Add up over all processes, in place, on the tensor's own device."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor


def is_first() -> bool:
    """Whether this is the first, or the only, of the processes that torchrun has started; before they have joined."""
    return int(os.environ.get("RANK", "0")) == 0


@contextlib.contextmanager
def join_processes(device: str) -> Iterator[Processes]:
    """The processes of this run: those torchrun started, or this one alone. `device` is cpu or cuda."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    place = torch.device("cuda", local) if device == "cuda" else torch.device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if count == 1:
        yield Processes(place)
        return
    # an hour: the first process may validate or write a checkpoint while the others wait
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo", timeout=timedelta(hours=1))
    try:
        control = dist.new_group(backend="gloo", timeout=timedelta(hours=1))
        yield Processes(place, dist.get_rank(), count, control)
    except RuntimeError as error:
        if " by peer" not in str(error):  # gloo's "connection closed by peer" and "connection reset by peer"
            raise
        raise UserError(
            "another process of this run has ended, so this one ends too: see what that one, or torchrun, says of it"
        ) from error
    finally:
        dist.destroy_process_group()


class _Sum(torch.autograd.Function):
    """The sum over all processes; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


def _sum(values: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(values)  # type: ignore[no-untyped-call]
    return total


def gathered(x: Tensor, processes: Processes) -> Tensor:
    """Of all processes, in order. Each counts the whole batch's loss, so gradients come back from all: their mean,
    which is taken of parameters' afterwards, is that of one process with the whole batch."""
    if processes.count == 1:
        return x
    everybodys = x.new_zeros(processes.count, *x.shape)
    everybodys[processes.rank] = x
    return _sum(everybodys).flatten(0, 1)


class SharedBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm over the batches of all processes, in plain torch: torch's own runs on GPUs only."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        x = input.float()
        count = _sum(x.new_tensor([x.numel() / x.shape[1]]))
        mean = _sum(x.sum((0, 2, 3))) / count
        centred = x - mean[:, None, None]
        variance = _sum((centred * centred).sum((0, 2, 3))) / count
        self._keep(mean.detach(), variance.detach(), count)
        scale = torch.rsqrt(variance + self.eps)
        if not self.affine:
            return (centred * scale[:, None, None]).to(input.dtype)
        return (centred * (self.weight * scale)[:, None, None] + self.bias[:, None, None]).to(input.dtype)

    def _keep(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(variance * count / (count - 1).clamp(min=1), momentum)


def spread(network: nn.Module, processes: Processes, find_unused: bool = False) -> nn.Module:
    """The network whose gradients all processes share."""
    if processes.count == 1:
        return network
    return DistributedDataParallel(
        network,
        device_ids=[processes.device.index] if processes.device.type == "cuda" else None,
        find_unused_parameters=find_unused,
        gradient_as_bucket_view=True,
    )


def _shared(norm: nn.BatchNorm2d) -> SharedBatchNorm2d:
    """With the norm's own parameters: those that are frozen stay so."""
    shared = SharedBatchNorm2d(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    shared.load_state_dict(norm.state_dict())
    shared.weight, shared.bias, shared.training = norm.weight, norm.bias, norm.training
    return shared


def share_batch_norm(model: nn.Module, device: torch.device) -> nn.Module:
    """Make every BatchNorm use the statistics of all processes; names in the state dict stay."""
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for name, child in model.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(model, name, _shared(child))
        else:
            share_batch_norm(child, device)
    return model
