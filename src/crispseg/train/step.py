"""One optimiser step: the loss of a batch that may be spread over parts and processes, and the update."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from crispseg.losses import IGNORE, LossConfig, segmentation_loss
from crispseg.models.base import SegmentationModel
from crispseg.ops.compile_ahead import compile_ahead
from crispseg.ops.cpu.training import fast_products
from crispseg.train.config import Precision, TrainConfig
from crispseg.train.distributed import Processes, share_batch_norm, spread
from crispseg.train.graphed import GraphedPass, buffers_kept
from crispseg.train.update import Updated

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_PIXEL_TERMS = ("seg", "aux")  # means over labelled pixels; the other terms are means over images


class Part(NamedTuple):
    """What a process works through at once: all of its share of a step's batch, or one part of it."""

    images: Tensor  # (B, bands, H, W), raw units
    labels: Tensor  # (B, H, W)
    names: Sequence[str]


def autocast(device: torch.device, precision: Precision | None) -> contextlib.AbstractContextManager[Any]:
    if precision in _HALF:
        return torch.autocast(device.type, _HALF[precision])
    return contextlib.nullcontext()


def use_fast_kernels(device: torch.device) -> None:
    """On a GPU: TF32 in float32 products. Choosing convolution kernels by trial takes half a minute and gains nothing
    in a step of crisp_nano."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")


def pixel_shares(labels: Sequence[Tensor], config: LossConfig, processes: Processes) -> Tensor:
    """(parts,) what each part weighs in a mean over all labelled pixels of all parts and processes, times the
    number of processes: gradients are averaged over these. So the batch can be cut anywhere without changing it."""
    if config.mean_over == "all":
        counts = [torch.tensor(float(part.numel()), device=part.device) for part in labels]
    elif config.class_weights is not None:
        weights = torch.tensor(config.class_weights, device=labels[0].device)
        counts = [weights[part[part != IGNORE]].sum() for part in labels]
    else:
        counts = [(part != IGNORE).sum().float() for part in labels]
    own = torch.stack(counts)
    total = processes.sum_(own.sum())
    return own * processes.count / total.clamp(min=torch.finfo(torch.float32).tiny)


def shared_loss(terms: dict[str, Tensor], config: LossConfig, pixel_share: Tensor, image_share: float) -> Tensor:
    """A part's contribution to the loss of the whole batch."""
    pixel_terms = terms["seg"] + config.auxiliary * terms["aux"] if "aux" in terms else terms["seg"]
    return terms["total"] * image_share + pixel_terms * (pixel_share - image_share)


def step_seed(seed: int, step: int, part: int, rank: int) -> int:
    """Where the random numbers of a part begin: so they need not be saved, and nothing else can disturb them."""
    digest = hashlib.blake2b(f"{seed}/{step}/{part}/{rank}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


def can_graph(config: TrainConfig, processes: Processes) -> bool:
    """Whether a step's forward and backward can be one CUDA graph: one part, one process, nothing the CPU decides."""
    if config.graph is False or processes.device.type != "cuda":
        return False
    simple_loss = config.loss.class_weights is None
    return processes.count == 1 and config.accumulate == 1 and config.precision != "fp16" and simple_loss


class Stepper(Updated[SegmentationModel]):
    """The model with all that changes it: optimiser, scaler of half-precision gradients, averages."""

    def __init__(self, model: SegmentationModel, config: TrainConfig, processes: Processes) -> None:
        self.config, self.processes = config, processes
        device = processes.device
        model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if processes.count > 1 and config.sync_batchnorm:
            share_batch_norm(model, device)
        super().__init__(model, config.optimizer, device, config.precision, config.ema)
        network: nn.Module = torch.compile(model) if config.compile else model  # type: ignore[assignment]
        self.network = spread(network, processes, config.find_unused)
        self.normalisation = model.info.normalisation(device)
        self.graph_wanted = can_graph(config, processes)
        self.compiled = processes.count > 1  # each of several processes compiles what it needs when it needs it
        self.rehearsed: set[torch.Size] = set()  # batches whose kernels for evaluation are compiled

    def state_dict(self) -> dict[str, Any]:
        """With the normalisation: the data's, or that of the weights a run began with, which may be gone by now."""
        info = self.model.info
        return {**super().state_dict(), "normalisation": {"mean": list(info.mean), "std": list(info.std)}}

    def _load(self, state: Mapping[str, Any]) -> None:
        super()._load(state)
        info, saved = self.model.info, state.get("normalisation")
        if saved is None or saved == {"mean": list(info.mean), "std": list(info.std)}:
            return
        mean, std = (tuple(float(number) for number in saved[kind]) for kind in ("mean", "std"))
        if not len(mean) == len(std) == self.model.in_channels:
            raise ValueError(f"it is normalised for {len(mean)} bands, and the model has {self.model.in_channels}")
        self.model.info = dataclasses.replace(info, mean=mean, std=std)
        self.normalisation = self.model.info.normalisation(self.processes.device)

    def normalised(self, images: Tensor) -> Tensor:
        """Raw pixels on the device, as the network takes them."""
        images = images.to(self.processes.device, non_blocking=True)
        return self.normalisation(images).contiguous(memory_format=torch.channels_last)

    def logits(self, images: Tensor) -> Tensor:
        """Of raw images, by the weights as they are; the model is to be in evaluation."""

        def work() -> Tensor:
            with autocast(self.processes.device, self.config.precision):
                logits: Tensor = self.model(self.normalised(images))
            return logits

        if self.processes.count == 1 and images.shape not in self.rehearsed:
            compile_ahead(work, self.processes.device)
            self.rehearsed.add(images.shape)
        return work()

    def step(self, step: int, parts: Sequence[Part]) -> dict[str, Tensor]:
        """Optimiser step number `step` (from 0); the loss terms of this process's parts and `grad_norm`."""
        self.model.train()
        schedule = self.config.schedule
        self.model.at_progress(step / (schedule.steps or step + 1))
        self.set_rates(step, schedule)
        device = self.processes.device
        labels = [part.labels.to(device, non_blocking=True) for part in parts]
        images = [part.images.to(device, non_blocking=True) for part in parts]
        shares = pixel_shares(labels, self.config.loss, self.processes)
        if not self.compiled:
            self._compile(images[0], labels[0], shares[0])
        if self.graph_wanted and self.graphed is None:
            self._record(images[0], labels[0], shares[0])
        said: dict[str, Tensor] = {}
        for i in range(len(parts)):
            torch.manual_seed(step_seed(self.config.seed, step, i, self.processes.rank))
            with self._quiet(i < len(parts) - 1):
                losses = (self.graphed or self._backward)(images[i], labels[i], shares[i])
            for name, value in losses.items():
                said[name] = said[name] + value if name in said else value
        said["grad_norm"] = self.update(step + 1)
        return said

    def _compile(self, images: Tensor, labels: Tensor, pixel_share: Tensor) -> None:
        """The step's kernels, side by side, before the first step needs them one by one."""
        with buffers_kept(self.model):
            compile_ahead(lambda: self._backward(images, labels, pixel_share), images.device)
        self.optimizer.zero_grad(set_to_none=True)
        self.compiled = True

    def _record(self, images: Tensor, labels: Tensor, pixel_share: Tensor) -> None:
        try:
            self.graphed = GraphedPass(self._backward, self.model, (images, labels, pixel_share))
        except RuntimeError as problem:
            self.graph_wanted = False
            self.optimizer.zero_grad(set_to_none=True)
            first_line = str(problem).strip().partition("\n")[0]
            print(f"{self.model.name} does not record as a CUDA graph ({first_line}): steps run kernel by kernel")

    def _backward(self, images: Tensor, labels: Tensor, pixel_share: Tensor) -> dict[str, Tensor]:
        """Losses of a part, weighed by its share of the batch; their gradients are added to the parameters'."""
        image_share, device = 1 / self.config.accumulate, self.processes.device
        with fast_products(device, self.config.compile), autocast(device, self.config.precision):
            output = self.network(self.normalised(images))
        terms = segmentation_loss(output, labels, self.config.loss)
        loss = shared_loss(terms, self.config.loss, pixel_share, image_share)
        self.scaler.scale(loss).backward()
        shares = {name: pixel_share if name in _PIXEL_TERMS else image_share for name in terms}
        said = {name: (value * shares[name]).detach() for name, value in terms.items() if name != "total"}
        return {"loss": loss.detach(), **said}

    def _quiet(self, quiet: bool) -> contextlib.AbstractContextManager[Any]:
        """Gradients need to be exchanged only with the last part's."""
        if quiet and isinstance(self.network, DistributedDataParallel):
            return self.network.no_sync()
        return contextlib.nullcontext()
