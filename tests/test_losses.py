"""Losses against loops and against the formulas of the method."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from crispseg.losses import (
    IGNORE,
    LossConfig,
    cross_entropy,
    dice_loss,
    grouped_cross_entropy,
    margin_loss,
    mutual_loss,
    orthogonality_loss,
    segmentation_loss,
)
from crispseg.models.base import Output
from crispseg.models.omp import Matches


def make(batch=2, classes=4, size=5, seed=0, ignored=0.3):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, classes, size, size, generator=generator)
    target = torch.randint(0, classes, (batch, size, size), generator=generator)
    target[torch.rand(target.shape, generator=generator) < ignored] = IGNORE
    return logits, target


def smoothed_loop(logits, target, smoothing, mean_over):
    """(1 - e) * -log p_target + (e / C) * sum_c -log p_c, pixel by pixel."""
    total, valid = 0.0, 0
    classes = logits.shape[1]
    for b, y, x in itertools.product(*map(range, target.shape)):
        if target[b, y, x] == IGNORE:
            continue
        log_p = torch.log_softmax(logits[b, :, y, x].double(), 0)
        total += -(1 - smoothing) * log_p[target[b, y, x]].item() - smoothing / classes * log_p.sum().item()
        valid += 1
    return total / (max(valid, 1) if mean_over == "valid" else target.numel())


@given(smoothing=st.floats(0, 0.5), mean_over=st.sampled_from(["valid", "all"]), seed=st.integers(0, 1000))
def test_cross_entropy_against_a_loop(smoothing, mean_over, seed):
    logits, target = make(seed=seed)
    found = cross_entropy(logits, target, smoothing, mean_over=mean_over).item()
    assert found == pytest.approx(smoothed_loop(logits, target, smoothing, mean_over), rel=1e-4)


def test_weighted_cross_entropy_is_torchs():
    logits, target = make()
    weight = torch.tensor([0.5, 1.0, 2.0, 4.0])
    expected = F.cross_entropy(logits, target, weight, ignore_index=IGNORE)
    torch.testing.assert_close(cross_entropy(logits, target, weight=weight), expected)


@given(seed=st.integers(0, 1000))
def test_dice_against_a_loop(seed):
    logits, target = make(seed=seed)
    classes = logits.shape[1]
    probabilities = logits.double().softmax(1)
    losses = []
    for c in range(classes):
        both = cardinality = truth = 0.0
        for b, y, x in itertools.product(*map(range, target.shape)):
            if target[b, y, x] != IGNORE:
                p, t = probabilities[b, c, y, x].item(), float(target[b, y, x] == c)
                both, cardinality, truth = both + p * t, cardinality + p + t, truth + t
        losses.append(1 - (2 * both + 0.05) / (cardinality + 0.05) if truth else 0.0)
    assert dice_loss(logits, target).item() == pytest.approx(sum(losses) / classes, rel=1e-4, abs=1e-6)


@given(batch=st.integers(1, 3), classes=st.integers(1, 5), k=st.integers(2, 4), seed=st.integers(0, 1000))
def test_orthogonality_against_loops(batch, classes, k, seed):
    torch.manual_seed(seed)
    prototypes = F.normalize(torch.randn(batch, classes, k, 6), dim=-1)
    values = [
        abs(torch.dot(prototypes[b, c, i], prototypes[b, c, j]).item())
        for b, c in itertools.product(range(batch), range(classes))
        for i, j in itertools.permutations(range(k), 2)
    ]
    assert orthogonality_loss(prototypes).item() == pytest.approx(sum(values) / len(values), rel=1e-5)


def test_orthogonality_at_its_ends():
    orthonormal = torch.eye(6)[:3].expand(2, 4, 3, 6)
    equal = F.normalize(torch.randn(2, 4, 1, 6), dim=-1).expand(2, 4, 3, 6)
    assert orthogonality_loss(orthonormal).item() == 0
    assert orthogonality_loss(equal).item() == pytest.approx(1)
    assert orthogonality_loss(-equal * torch.tensor([1.0, -1.0, 1.0])[:, None]).item() == pytest.approx(1)
    assert orthogonality_loss(equal[:, :, :1]).item() == 0  # one prototype has no pair


@given(batch=st.integers(1, 3), classes=st.integers(1, 5), delta=st.floats(0.05, 1.5), seed=st.integers(0, 1000))
def test_margin_against_loops(batch, classes, delta, seed):
    torch.manual_seed(seed)
    prototypes = F.normalize(torch.randn(batch, classes, 3, 4), dim=-1)
    total = 0.0
    for b in range(batch):
        means = [prototypes[b, c].mean(0) / prototypes[b, c].mean(0).norm() for c in range(classes)]
        for c, other in itertools.permutations(range(classes), 2):
            total += max(0.0, torch.dot(means[c], means[other]).item() - (1 - delta))
    assert margin_loss(prototypes, delta).item() == pytest.approx(total / batch, rel=1e-4, abs=1e-6)


@given(classes=st.integers(1, 4), k=st.integers(2, 4), seed=st.integers(0, 1000))
def test_mutual_information_against_loops(classes, k, seed):
    torch.manual_seed(seed)
    matches, target = 3 * torch.randn(2, classes, k, 3, 4), torch.randint(0, classes + 1, (2, 6, 8))
    target[target == classes] = IGNORE
    found = []
    for c in range(classes):
        shares = [
            matches[b, c, :, y, x].softmax(0)
            for b, y, x in itertools.product(range(2), range(3), range(4))
            if target[b, 2 * y + 1, 2 * x + 1] == c
        ]
        if shares:
            mean = torch.stack(shares).mean(0)
            entropies = [-(p * p.log()).sum().item() for p in (mean, *shares)]
            found.append(entropies[0] - sum(entropies[1:]) / len(shares))
    expected = -sum(found) / max(len(found), 1) / math.log(k)
    assert mutual_loss(matches, target).item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_logits_of_every_prototype_are_made_only_for_the_mutual_information():
    prototypes, target = F.normalize(torch.randn(2, 4, 3, 8), dim=-1), torch.randint(0, 4, (2, 6, 8))
    matches = Matches(torch.randn(2, 8, 3, 4, requires_grad=True), prototypes, torch.tensor(10.0))
    logits = torch.randn(2, 4, 6, 8)
    terms = segmentation_loss(Output(logits, matches=matches), target, LossConfig(mutual=0.5))
    torch.testing.assert_close(terms["mutual"], mutual_loss(matches.logits(), target))
    assert torch.autograd.grad(terms["total"], matches.descriptors)[0].abs().max() > 0
    unused = Matches(matches.descriptors, prototypes[..., :1], matches.scale)  # they cannot be made
    assert "mutual" not in segmentation_loss(Output(logits, matches=unused), target, LossConfig())


def test_mutual_information_at_its_ends():
    target = torch.zeros(1, 2, 2, dtype=torch.long)
    same = torch.zeros(1, 1, 2, 2, 2)
    each = torch.tensor([[[50.0, 0.0], [0.0, 50.0]], [[0.0, 50.0], [50.0, 0.0]]])[None, None]
    assert mutual_loss(same, target).item() == pytest.approx(0, abs=1e-6)
    assert mutual_loss(each, target).item() == pytest.approx(-1, abs=1e-6)
    assert mutual_loss(same[:, :, :1], target).item() == 0


@pytest.mark.parametrize("kind", ["only ignored", "one class"])
def test_finite_on_empty_and_uniform_batches(kind):
    logits = torch.randn(1, 3, 4, 4, requires_grad=True)
    prototypes = F.normalize(torch.randn(1, 3, 2, 4), dim=-1).requires_grad_()
    target = torch.full((1, 4, 4), IGNORE if kind == "only ignored" else 1)
    for config in (
        LossConfig(dice=1.0, smoothing=0.1),
        LossConfig(mean_over="all"),
        LossConfig(class_weights=(1.0, 0.0, 2.0)),
    ):
        terms = segmentation_loss(Output(logits, (logits * 2,), prototypes), target, config)
        gradients = torch.autograd.grad(terms["total"], (logits, prototypes))
        assert all(term.isfinite() for term in terms.values())
        assert all(g.isfinite().all() for g in gradients)
        if kind == "only ignored":
            assert gradients[0].abs().sum() == 0


def test_total_is_the_weighted_sum():
    logits, target = make()
    output = Output(logits, aux=(logits + 1, logits * 0.5), prototypes=F.normalize(torch.randn(2, 4, 3, 8), dim=-1))
    config = LossConfig(smoothing=0.05, dice=0.7, auxiliary=0.4, orth=0.3, margin=0.2)
    terms = segmentation_loss(output, target, config)
    assert set(terms) == {"seg", "dice", "aux", "orth", "margin", "total"}
    expected = terms["seg"] + 0.7 * terms["dice"] + 0.4 * terms["aux"] + 0.3 * terms["orth"] + 0.2 * terms["margin"]
    torch.testing.assert_close(terms["total"], expected)
    plain = segmentation_loss(Output(logits), target, LossConfig())
    assert set(plain) == {"seg", "total"}
    assert math.isclose(plain["total"].item(), plain["seg"].item())


def test_grouped_cross_entropy_against_loops():
    torch.manual_seed(0)
    logits = torch.randn(2, 4, 5, 6, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 6, (2, 5, 6))  # 4 and 5 are groups
    target[0, 0] = 255
    groups = ((0, 2), (1, 2, 3))
    for smoothing in (0.0, 0.2):
        total, count = 0.0, 0
        probabilities = logits.softmax(1)
        for b in range(2):
            for y in range(5):
                for x in range(6):
                    label, p = int(target[b, y, x]), probabilities[b, :, y, x]
                    if label == 255:
                        continue
                    count += 1
                    if label < 4:
                        total = total - (1 - smoothing) * p[label].log() - smoothing * p.log().mean()
                    else:
                        total = total - sum(p[c] for c in groups[label - 4]).log()
        found = grouped_cross_entropy(logits, target, groups, smoothing)
        torch.testing.assert_close(found.double(), total / count, atol=1e-6, rtol=1e-6)
        mine = torch.autograd.grad(found, logits)[0]
        theirs = torch.autograd.grad(total / count, logits)[0]
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)
    assert grouped_cross_entropy(logits, torch.full((2, 5, 6), 255), groups).item() == 0
    plain = cross_entropy(logits.float(), target.clamp(max=3))
    torch.testing.assert_close(grouped_cross_entropy(logits, target.clamp(max=3), groups), plain)


def test_groups_reach_every_term_of_the_loss():
    logits = torch.randn(1, 3, 4, 4)
    target = torch.tensor([0, 1, 2, 3]).repeat(4, 1)[None]
    config = LossConfig(dice=1.0, groups=((0, 1),), orth=0, margin=0)
    terms = segmentation_loss(Output(logits, aux=(logits,)), target, config)
    torch.testing.assert_close(terms["aux"], terms["seg"])
    torch.testing.assert_close(terms["dice"], dice_loss(logits, target.masked_fill(target == 3, 255)))
