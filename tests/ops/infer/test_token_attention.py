"""The formulas against loops written out; interpreted_head.py and tests/fused/test_gpu.py have the kernels."""

import torch

from crispseg.ops.common.norm import Norm
from crispseg.ops.infer.token_attention import (
    Join,
    OwnAttention,
    Perceptron,
    Vectors,
    attend_own,
    join_grouped,
    join_perceptron,
    join_vectors,
    settle,
)

BATCH, TOKENS, READ, WIDTH = 2, 3, 5, 8


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def normed(x, norm):
    return (x - x.mean()) / torch.sqrt(((x - x.mean()) ** 2).mean() + norm.eps) * norm.weight + norm.bias


def drawn_join():
    return Join(draw(READ, WIDTH), draw(WIDTH), Norm(*draw(2, WIDTH), 1e-3))


def drawn_vectors():
    return Vectors(draw(4, 3, WIDTH), draw(4, 3), draw(4, 3, WIDTH), draw(4, 3))


def joined(tokens, read, join):
    """Row by row."""
    rows = [normed(t + r @ join.weight + join.bias, join.norm) for t, r in zip(tokens, read, strict=True)]
    return torch.stack(rows)


def check_vectors(t, found, scores, vectors):
    for g in range(4):
        inner = vectors.first[g] @ t + vectors.bias[g]
        torch.testing.assert_close(found[g], sum(inner[w] * vectors.second[g, w] for w in range(3)))
        if scores is not None:
            torch.testing.assert_close(scores[g], inner @ vectors.score[g])


def test_join_perceptron():
    tokens, read, join = draw(BATCH, TOKENS, WIDTH), draw(BATCH, TOKENS, READ), drawn_join()
    perceptron = Perceptron(draw(11, WIDTH), draw(11), draw(11, WIDTH), draw(WIDTH))
    found = join_perceptron(tokens, read, join, perceptron).sum(0)
    for b in range(BATCH):
        for t, result in zip(joined(tokens[b], read[b], join), found[b], strict=True):
            units = (perceptron.first @ t + perceptron.first_bias).clamp(min=0)
            torch.testing.assert_close(result, t + units @ perceptron.second + perceptron.second_bias)


def test_settle():
    parts, norm, vectors = draw(5, BATCH, TOKENS, WIDTH), Norm(*draw(2, WIDTH), 1e-3), drawn_vectors()
    tokens, made, scores, nothing = settle(parts, norm, vectors, None)
    assert nothing.numel() == 0
    for b in range(BATCH):
        for i in range(TOKENS):
            torch.testing.assert_close(tokens[b, i], normed(sum(parts[:, b, i]), norm))
            check_vectors(tokens[b, i], made[b, i], scores[b, i], vectors)
    own = OwnAttention(draw(3 * WIDTH, WIDTH), draw(3 * WIDTH), 2)
    torch.testing.assert_close(settle(parts, norm, vectors, own)[3], attend_own(tokens, own))


def test_attend_own():
    tokens, own = draw(BATCH, TOKENS, WIDTH), OwnAttention(draw(3 * WIDTH, WIDTH), draw(3 * WIDTH), 2)
    found = attend_own(tokens, own)
    for b in range(BATCH):
        q, k, v = (tokens[b] @ own.weight.T + own.bias).chunk(3, dim=1)
        for h in range(2):
            part = slice(4 * h, 4 * h + 4)
            for i in range(TOKENS):
                weights = torch.softmax(torch.stack([q[i, part] @ k[j, part] / 2 for j in range(TOKENS)]), 0)
                torch.testing.assert_close(found[b, i, part], sum(weights[j] * v[j, part] for j in range(TOKENS)))


def test_join_vectors():
    tokens, read, join, vectors = draw(BATCH, TOKENS, WIDTH), draw(BATCH, TOKENS, READ), drawn_join(), drawn_vectors()
    found, made = join_vectors(tokens, read, join, vectors)
    for b in range(BATCH):
        torch.testing.assert_close(found[b], joined(tokens[b], read[b], join))
        for i in range(TOKENS):
            check_vectors(found[b, i], made[b, i], None, vectors)


def test_join_grouped():
    tokens, read, join = draw(BATCH, TOKENS, WIDTH), draw(BATCH, TOKENS, READ), drawn_join()
    weight, bias = draw(TOKENS, WIDTH, 4), draw(TOKENS, 4)
    found = join_grouped(tokens, read, join, weight, bias, True)
    for b in range(BATCH):
        for i, t in enumerate(joined(tokens[b], read[b], join)):
            torch.testing.assert_close(found[b, i], (t @ weight[i] + bias[i]).clamp(min=0))
