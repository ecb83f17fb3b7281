"""What training minimises: cross-entropy, Dice, auxiliary heads, and the prototypes' two regularisers.

Every term is finite, with zero gradient, when a batch holds only ignored pixels.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.models.base import Output
from crispseg.ops.train.cross_entropy import summed_cross_entropy

IGNORE = 255


@dataclasses.dataclass(frozen=True)
class LossConfig:
    smoothing: float = 0.0  # label smoothing of the cross-entropy
    dice: float = 0.0  # weight of the Dice term
    auxiliary: float = 0.4  # weight of each auxiliary head's cross-entropy
    orth: float = 0.1  # weight of L_orth
    margin: float = 0.1  # weight of L_margin
    delta: float = 0.5  # margin between class means: cosines above 1 - delta are penalised
    mutual: float = 0.0  # weight of L_mutual; needs soft matching (model.options.matching=lse)
    mean_over: Literal["valid", "all"] = "valid"  # "all" keeps ignored pixels in the mean, as some recipes do
    class_weights: tuple[float, ...] | None = None
    groups: tuple[tuple[int, ...], ...] = ()  # label C + g means any class of group g; set by data.also


def grouped_cross_entropy(
    logits: Tensor,
    target: Tensor,
    groups: tuple[tuple[int, ...], ...],
    smoothing: float = 0.0,
    mean_over: Literal["valid", "all"] = "valid",
) -> Tensor:
    """Cross-entropy where a label may stand for several classes: minus the log of their probabilities' sum."""
    logits = logits.float()
    classes = logits.shape[1]
    # stacked channel by channel: indexing with a list would copy it to the device, which no CUDA graph can record
    members = [torch.stack([logits[:, index] for index in group], dim=1) for group in groups]
    together = [torch.logsumexp(x, dim=1, keepdim=True) for x in members]
    log_z = torch.logsumexp(logits, dim=1, keepdim=True)
    log_p = torch.cat([logits, *together], dim=1) - log_z  # (B, C + G, H, W)
    valid = target != IGNORE
    losses = -log_p.gather(1, target.masked_fill(~valid, 0)[:, None])[:, 0]
    if smoothing:
        even = -log_p[:, :classes].mean(1)
        losses = torch.where(target < classes, (1 - smoothing) * losses + smoothing * even, losses)
    total = (losses * valid).sum()
    return total / (target.numel() if mean_over == "all" else valid.sum().clamp(min=1))


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    smoothing: float = 0.0,
    weight: Tensor | None = None,
    mean_over: Literal["valid", "all"] = "valid",
) -> Tensor:
    """Label-smoothed cross-entropy of (B, C, H, W) logits; ignored pixels give nothing."""
    if weight is None:
        total, valid = summed_cross_entropy(logits, target, IGNORE, smoothing)
        return total / (target.numel() if mean_over == "all" else valid.clamp(min=1))
    total = functional.cross_entropy(
        logits.float(), target, weight=weight, ignore_index=IGNORE, label_smoothing=smoothing, reduction="sum"
    )
    if mean_over == "all":
        return total / target.numel()
    return total / weight[target[target != IGNORE]].sum().clamp(min=torch.finfo(torch.float32).tiny)


def dice_loss(logits: Tensor, target: Tensor, smooth: float = 0.05, eps: float = 1e-7) -> Tensor:
    """1 - Dice per class over the whole batch, zero for classes without a true pixel, averaged over all classes."""
    classes = logits.shape[1]
    valid = (target != IGNORE)[:, None]
    probabilities = logits.float().softmax(1) * valid
    truth = functional.one_hot(target.masked_fill(target == IGNORE, 0), classes).movedim(-1, 1) * valid
    intersection = (probabilities * truth).sum((0, 2, 3))
    cardinality = (probabilities + truth).sum((0, 2, 3))
    score = (2 * intersection + smooth) / (cardinality + smooth).clamp(min=eps)
    present = truth.sum((0, 2, 3)) > 0
    return ((1 - score) * present).mean()


def orthogonality_loss(prototypes: Tensor) -> Tensor:
    """L_orth: mean over batch, class and ordered pairs k != l of |<P_k, P_l>|; prototypes (B, C, K, d) normalised."""
    count = prototypes.shape[2]
    if count == 1:
        return prototypes.sum() * 0.0
    gram = prototypes @ prototypes.transpose(-1, -2)  # (B, C, K, K)
    off_diagonal = 1 - torch.eye(count, device=gram.device, dtype=gram.dtype)
    return (gram.abs() * off_diagonal).sum((-1, -2)).mean() / (count * (count - 1))


def margin_loss(prototypes: Tensor, delta: float) -> Tensor:
    """L_margin: mean over batch of sum over ordered pairs c != c' of relu(<m_c, m_c'> - (1 - delta)),
    m_c the normalised mean of class c's prototypes."""
    means = functional.normalize(prototypes.mean(2), dim=-1)  # (B, C, d)
    gram = means @ means.transpose(-1, -2)
    off_diagonal = 1 - torch.eye(gram.shape[-1], device=gram.device, dtype=gram.dtype)
    return (functional.relu(gram - (1 - delta)) * off_diagonal).sum((-1, -2)).mean()


def mutual_loss(matches: Tensor, target: Tensor) -> Tensor:
    """L_mutual: minus the mutual information of a class's pixels and its prototypes, over log K, mean over the classes
    in the batch: 0 if every pixel takes the same mixture of prototypes, -1 if each takes one and all are taken alike.

    matches (B, C, K, h, w): logits of every prototype; target (B, H, W), of which the nearest pixels are taken.
    """
    classes, count, *size = matches.shape[1:]
    if count == 1:
        return matches.sum() * 0.0
    nearest = functional.interpolate(target[:, None].float(), size=size, mode="nearest-exact")[:, 0].long()
    of_class = nearest[:, None] == torch.arange(classes, device=target.device)[:, None, None]  # (B, C, h, w)
    log_share = matches.float().log_softmax(2)
    share = log_share.exp()
    pixels = of_class.sum((0, 2, 3)).clamp(min=1)  # (C,)
    mean_share = (share * of_class[:, :, None]).sum((0, 3, 4)) / pixels[:, None]  # (C, K)
    entropy_of_mean = -(mean_share * mean_share.clamp(min=1e-8).log()).sum(1)
    mean_entropy = -((share * log_share).sum(2) * of_class).sum((0, 2, 3)) / pixels
    present = of_class.any(3).any(2).any(0)
    information = (entropy_of_mean - mean_entropy) * present
    return -information.sum() / present.sum().clamp(min=1) / math.log(count)


def segmentation_loss(output: Output, target: Tensor, config: LossConfig) -> dict[str, Tensor]:
    """The terms that apply to this output and, under "total", their weighted sum."""
    weight = None
    if config.class_weights is not None:
        weight = torch.tensor(config.class_weights, device=output.logits.device)

    def pixel_loss(logits: Tensor) -> Tensor:
        if config.groups:
            return grouped_cross_entropy(logits, target, config.groups, config.smoothing, config.mean_over)
        return cross_entropy(logits, target, config.smoothing, weight, config.mean_over)

    terms = {"seg": pixel_loss(output.logits)}
    total = terms["seg"]
    known = target.masked_fill(target >= output.logits.shape[1], IGNORE) if config.groups else target
    if config.dice:
        terms["dice"] = dice_loss(output.logits, known)
        total = total + config.dice * terms["dice"]
    if output.aux and config.auxiliary:
        losses = [pixel_loss(x) for x in output.aux]
        terms["aux"] = torch.stack(losses).sum()
        total = total + config.auxiliary * terms["aux"]
    if output.prototypes is not None and config.orth:
        terms["orth"] = orthogonality_loss(output.prototypes)
        total = total + config.orth * terms["orth"]
    if output.prototypes is not None and config.margin:
        terms["margin"] = margin_loss(output.prototypes, config.delta)
        total = total + config.margin * terms["margin"]
    if config.mutual and output.matches is not None:
        terms["mutual"] = mutual_loss(output.matches.logits(), known)
        total = total + config.mutual * terms["mutual"]
    return {**terms, "total": total}
