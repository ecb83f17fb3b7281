"""Changes of pictures against plain numpy, one at a time, and as a pure function."""

import numpy as np
import pytest
import torch

from crispseg.pretrain.changes import Changes, apply_changes, no_changes, plan_changes
from crispseg.pretrain.mixing import apply_mix, plan_mix, swapped

OFF = Changes(area=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0, picks=0, erase=0.0, mix=0.0)


def pictures(count=6, side=16):
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, 3, side, side), dtype=np.uint8))


def changed(how, x, size=16, aerial=False, epoch=0, first=0):
    indices = np.arange(first, first + len(x))
    return apply_changes(x, plan_changes(how, 3, np.full(len(x), epoch), indices, aerial), size)


def test_nothing_changes_when_all_is_off():
    x = pictures()
    torch.testing.assert_close(changed(OFF, x), x.float(), atol=1e-3, rtol=0)
    torch.testing.assert_close(apply_changes(x, no_changes(len(x)), 16), x.float(), atol=1e-3, rtol=0)


def test_shrinking_averages():
    x = pictures(side=32)
    expected = torch.nn.functional.avg_pool2d(x.float(), 2)
    torch.testing.assert_close(changed(OFF, x), expected, atol=1e-3, rtol=0)


def test_turns_and_flips_are_the_eight_of_the_square():
    x = pictures(200)
    found = changed(Changes(**{**vars(OFF), "flip": 0.5}), x, aerial=True)
    seen = set()
    for before, after in zip(x.float(), found, strict=True):
        kinds = [torch.rot90(b, k, (1, 2)) for b in (before, before.flip(-1)) for k in range(4)]
        apart = [float((kind - after).abs().max()) for kind in kinds]
        assert min(apart) < 1e-3
        seen.add(int(np.argmin(apart)))
    assert seen == set(range(8))


@pytest.mark.parametrize("strength", [0.3, 1.0])
def test_a_sample_is_the_same_in_any_batch_and_epochs_differ(strength):
    how, x = Changes(strength=strength), pictures(8, 24)
    whole = changed(how, x)
    assert whole.min() >= 0 and whole.max() <= 255
    torch.testing.assert_close(changed(how, x[5:7], first=5), whole[5:7], atol=0, rtol=0)
    assert not torch.allclose(changed(how, x, epoch=1), whole)


def test_mixed_pairs_against_loops():
    how, images = Changes(mix=1.0), torch.rand(40, 3, 8, 8)
    mix = plan_mix(how, 5, np.arange(10, 50))
    found = apply_mix(images, mix)
    assert torch.equal(swapped(torch.arange(4)), torch.tensor([1, 0, 3, 2]))
    for i in range(40):
        other = images[i ^ 1]
        top, left, bottom, right = mix.box[i].tolist()
        for row in range(8):
            for column in range(8):
                y, x = (row + 0.5) / 8, (column + 0.5) / 8
                share = mix.blend[i].item()
                expected = share * images[i, :, row, column] + (1 - share) * other[:, row, column]
                if top <= y < bottom and left <= x < right:
                    expected = other[:, row, column]
                torch.testing.assert_close(found[i, :, row, column], expected)
    boxed = mix.box[:, 2] > 0
    assert 5 < int(boxed.sum()) < 35
    area = (mix.box[:, 2] - mix.box[:, 0]) * (mix.box[:, 3] - mix.box[:, 1])
    torch.testing.assert_close(mix.own[boxed], 1 - area[boxed])
    torch.testing.assert_close(mix.own[~boxed], mix.blend[~boxed])
    again = plan_mix(how, 5, np.arange(20, 24))
    torch.testing.assert_close(again.own, mix.own[10:14], atol=0, rtol=0)
