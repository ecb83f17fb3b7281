"""Best cosines and smooth maxima against a loop over classes and prototypes, in float64; the kernels are tested with
those of attention (`interpreted_head.py`, `test_head_gpu.py`)."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from crispseg.ops.train.matching import best_match, match, soft_match


def cosines_of(x, prototypes):
    """x (B, L, d) -> for each class the cosines with its prototypes, (K, B, L): the definition."""
    y = x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    for c in range(prototypes.shape[1]):
        yield torch.stack([(y * prototypes[:, c, None, k]).sum(-1) for k in range(prototypes.shape[2])])


def best_of(x, prototypes):
    """x (B, L, d) -> (B, classes, L): the definition."""
    return torch.stack([cosines.max(0).values for cosines in cosines_of(x, prototypes)], 1)


def smooth_best_of(x, prototypes, sharpness):
    """x (B, L, d) -> (B, classes, L): the definition, with the largest taken out, so that nothing overflows."""
    found = []
    for cosines in cosines_of(x, prototypes):
        top = cosines.max(0).values.detach()
        found.append(top + ((cosines - top) * sharpness).exp().sum(0).log() / sharpness)
    return torch.stack(found, 1)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(1, 5))
def test_best_match(classes, count, width, rows):
    descriptors = torch.randn(2, width, rows, 3, dtype=torch.float64)
    prototypes = torch.randn(2, classes, count, width, dtype=torch.float64)
    best, winners = best_match(descriptors, prototypes)
    truth = best_of(descriptors.flatten(2).transpose(1, 2), prototypes)
    torch.testing.assert_close(best.flatten(2), truth)
    won = match(descriptors, prototypes).gather(2, winners[:, :, None])[:, :, 0]
    torch.testing.assert_close(won, best)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.sampled_from([0.5, 10.0, 1000.0]))
def test_soft_match(classes, count, width, sharpness):
    descriptors = torch.randn(2, width, 2, 3, dtype=torch.float64)
    prototypes = torch.randn(2, classes, count, width, dtype=torch.float64)
    sharpness = torch.tensor(sharpness, dtype=torch.float64)
    truth = smooth_best_of(descriptors.flatten(2).transpose(1, 2), prototypes, sharpness)
    torch.testing.assert_close(soft_match(descriptors, prototypes, sharpness).flatten(2), truth)


def test_very_sharp_is_the_maximum():
    descriptors = torch.randn(2, 8, 5, 3)
    prototypes = torch.nn.functional.normalize(torch.randn(2, 3, 4, 8), dim=-1)
    best, _ = best_match(descriptors, prototypes)
    torch.testing.assert_close(soft_match(descriptors, prototypes, torch.tensor(1e6)), best)
