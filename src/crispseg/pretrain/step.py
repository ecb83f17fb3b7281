"""One optimiser step of pretraining: the losses of a batch of several sets, and the update."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.normalisation import Normalisation
from crispseg.ops.compile_ahead import compile_ahead
from crispseg.ops.cpu.training import fast_products
from crispseg.pretrain.config import PretrainConfig, ViewsConfig
from crispseg.pretrain.mixing import swapped
from crispseg.pretrain.network import Pretraining
from crispseg.pretrain.teacher import MEAN, STD, Teacher, teaching_loss
from crispseg.train.distributed import Processes, gathered, share_batch_norm, spread
from crispseg.train.graphed import GraphedPass, buffers_kept
from crispseg.train.step import autocast, step_seed
from crispseg.train.update import Updated


class Batch(NamedTuple):
    """This process's share of a step, the sets one after the other."""

    images: Tensor  # (B, 3, s, s), 0 to 255, changed and mixed
    labels: Tensor  # (B,), -1 where there are none
    own: Tensor  # (B,) the share of a picture's own label beside its neighbour's


class PretrainStepper(Updated[Pretraining]):
    """The network with all that changes it."""

    def __init__(
        self, network: Pretraining, config: PretrainConfig, processes: Processes, teacher: Teacher | None
    ) -> None:
        self.config, self.processes, self.teacher = config, processes, teacher
        self.weights = {one.name or "": one.weight for one in config.sets}
        device = processes.device
        network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if processes.count > 1 and config.sync_batchnorm:
            share_batch_norm(network, device)
        super().__init__(network, config.optimizer, device, config.precision, config.ema)
        self.network = spread(network, processes)
        self.normalisation = Normalisation(MEAN, STD, device)
        on_gpu = device.type == "cuda" and processes.count == 1 and config.precision != "fp16"
        self.graph_wanted = on_gpu and config.graph is not False
        self.prepared_for = 0  # pictures of this size

    def normalised(self, images: Tensor) -> Tensor:
        return self.normalisation(images).contiguous(memory_format=torch.channels_last)

    def step(self, step: int, batch: Batch) -> dict[str, Tensor]:
        """Optimiser step number `step` (from 0); the loss's terms and `grad_norm`."""
        self.model.train()
        self.set_rates(step, self.config.schedule)
        if self.prepared_for != batch.images.shape[-1]:
            self._prepare(batch)
        torch.manual_seed(step_seed(self.config.seed, step, 0, self.processes.rank))
        said = (self.graphed or self._backward)(*batch)
        said["grad_norm"] = self.update(step + 1)
        return said

    def _prepare(self, batch: Batch) -> None:
        """Each size of the pictures has its kernels and a graph of its own; the last graph's memory is given back."""
        self.graphed, self.prepared_for = None, batch.images.shape[-1]
        self.optimizer.zero_grad(set_to_none=True)
        if self.processes.count == 1:
            with buffers_kept(self.model):
                compile_ahead(lambda: self._backward(*batch), batch.images.device)
            self.optimizer.zero_grad(set_to_none=True)
        if not self.graph_wanted:
            return
        try:
            self.graphed = GraphedPass(self._backward, self.model, tuple(batch))
        except RuntimeError as problem:
            self.graph_wanted = False
            self.optimizer.zero_grad(set_to_none=True)
            first_line = str(problem).strip().partition("\n")[0]
            print(f"the step does not record as a CUDA graph ({first_line}): it runs kernel by kernel")

    def _backward(self, images: Tensor, labels: Tensor, own: Tensor) -> dict[str, Tensor]:
        """The losses of a batch; their gradients are added to the parameters'."""
        whole = self.normalised(images)
        device = self.processes.device
        with fast_products(device), autocast(device, self.config.precision):
            told = self.network(whole)
            features = self.teacher(whole) if self.teacher is not None else []
        terms: dict[str, Tensor] = {}
        loss = whole.new_zeros(())
        for name, logits in told.logits.items():
            part = self.model.parts[name]
            terms[name] = mixed_cross_entropy(logits, labels[part], own[part], self.config.smoothing)
            loss = loss + self.weights[name] * terms[name]
        if features:
            terms["teacher"] = teaching_loss(told.features, features)
            loss = loss + self.config.teacher.weight * terms["teacher"]
        for name, embedded in told.views.items():
            terms[name] = views_loss(gathered(embedded.float(), self.processes), self.config.views)
            loss = loss + self.weights[name] * terms[name]
        self.scaler.scale(loss).backward()
        return {"loss": loss.detach(), **{name: value.detach() for name, value in terms.items()}}


def mixed_cross_entropy(logits: Tensor, labels: Tensor, own: Tensor, smoothing: float) -> Tensor:
    """Mean cross-entropy with the labels of the picture and of its neighbour, each by its share."""
    logits = logits.float()
    mine = functional.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="none")
    others = functional.cross_entropy(logits, swapped(labels), label_smoothing=smoothing, reduction="none")
    return (own * mine + (1 - own) * others).mean()


def views_loss(embedded: Tensor, how: ViewsConfig) -> Tensor:
    """VICReg (Bardes, Ponce and LeCun 2022) of embeddings (2 n, width), neighbours being views of one picture: these
    alike, every number varying over the pictures, and no two saying the same. In units of `how.alike`."""
    loss = how.alike * functional.mse_loss(embedded[::2], embedded[1::2])
    for views in (embedded[::2], embedded[1::2]):
        centred = views - views.mean(0)
        covariance = centred.T @ centred / max(len(views) - 1, 1)
        deviation = (covariance.diagonal() + 1e-4).sqrt()
        apart = covariance.square().sum() - covariance.diagonal().square().sum()
        loss = loss + how.varied * functional.relu(1 - deviation).mean() / 2 + how.apart * apart / views.shape[1]
    return loss / (how.alike or 1.0)
