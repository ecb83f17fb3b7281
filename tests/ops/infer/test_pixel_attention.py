"""The formulas against loops written out; the kernels through Triton's interpreter."""

import torch

from crispseg.ops.common.norm import Norm
from crispseg.ops.infer.pixel_attention import pixels_attend_tokens, read_pixels
from crispseg.ops.maps.resizing import resize_add


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def normed(x, weight, bias, eps):
    return (x - x.mean()) / torch.sqrt(((x - x.mean()) ** 2).mean() + eps) * weight + bias


def test_read_pixels():
    queries, pixels, projection = draw(2, 3, 2, 6), draw(2, 7, 6), draw(2, 5, 6)
    found = read_pixels(queries, pixels, projection)
    for b in range(2):
        for t in range(3):
            for h in range(2):
                weights = torch.softmax(pixels[b] @ queries[b, t, h], 0)
                expected = projection[h] @ (weights[:, None] * pixels[b]).sum(0)
                torch.testing.assert_close(found[b, t, 5 * h : 5 * h + 5], expected)


def test_pixels_attend_tokens():
    pixels, keys, values, added = draw(2, 7, 6), draw(2, 3, 2, 6), draw(2, 3, 2, 6), draw(2, 3, 2)
    bias, weight, shift = draw(3, 6)
    found = pixels_attend_tokens(pixels, keys, added, values, bias, Norm(weight, shift, 1e-3))
    for b in range(2):
        for i in range(7):
            x = pixels[b, i]
            total = x + bias
            for h in range(2):
                scores = torch.stack([x @ keys[b, t, h] + added[b, t, h] for t in range(3)])
                total = total + torch.softmax(scores, 0) @ values[b, :, h]
            torch.testing.assert_close(found[b, i], normed(total, weight, shift, 1e-3))


def test_large_scores_stay_finite():
    pixels, keys, values = 1e3 * torch.randn(1, 5, 6), 1e3 * torch.randn(1, 3, 2, 6), torch.randn(1, 3, 2, 6)
    norm = Norm(torch.ones(6), torch.zeros(6), 1e-5)
    written = pixels_attend_tokens(pixels, keys, torch.zeros(1, 3, 2), values, torch.zeros(6), norm)
    assert written.isfinite().all()
    assert read_pixels(keys, pixels, torch.randn(2, 3, 6)).isfinite().all()


def test_resize_add():
    finer, coarser = draw(1, 4, 6, 3), draw(1, 2, 3, 3)
    found = resize_add(finer, coarser)
    for y, x in [(0, 0), (1, 2), (3, 5), (2, 3)]:
        sy, sx = max((y + 0.5) / 2 - 0.5, 0), max((x + 0.5) / 2 - 0.5, 0)
        top, left = int(sy), int(sx)
        bottom, right = min(top + 1, 1), min(left + 1, 2)
        fy, fx = sy - top, sx - left
        above = coarser[0, top, left] * (1 - fx) + coarser[0, top, right] * fx
        below = coarser[0, bottom, left] * (1 - fx) + coarser[0, bottom, right] * fx
        torch.testing.assert_close(found[0, y, x], finer[0, y, x] + above * (1 - fy) + below * fy)
