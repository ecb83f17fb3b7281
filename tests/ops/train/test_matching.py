"""Best cosines against a loop over classes and prototypes, in float64; the kernels are tested with those of attention
(`interpreted_head.py`, `test_head_gpu.py`)."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from crispseg.ops.train.matching import best_match, match


def best_of(x, prototypes):
    """x (B, L, d) -> (B, classes, L): the definition."""
    y = x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    found = []
    for c in range(prototypes.shape[1]):
        cosines = [(y * prototypes[:, c, None, k]).sum(-1) for k in range(prototypes.shape[2])]
        found.append(torch.stack(cosines).max(0).values)
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
