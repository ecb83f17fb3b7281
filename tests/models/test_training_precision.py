"""Mixed precision learns: nano over-fits a toy set in 200 steps with no NaN on the way."""

import pytest
import torch

from crispseg.losses import LossConfig, segmentation_loss
from crispseg.models.registry import create_model
from tests.fakedata import aerial

CORNERS = ((30, 20), (70, 80))


@pytest.mark.parametrize(
    "dtype",  # a CPU has no fast products of float16
    [pytest.param(torch.bfloat16, id="bf16"), pytest.param(torch.float16, id="fp16", marks=pytest.mark.slow)],
)
def test_nano_overfits_a_toy_set(dtype):
    image, labels = aerial.generate(128, 128, seed=3)
    images = (torch.from_numpy(image).permute(2, 0, 1)[None].float() - 110) / 40
    images = torch.stack([images[0, :, y : y + 16, x : x + 16] for y, x in CORNERS])
    target = torch.stack([torch.from_numpy(labels[y : y + 16, x : x + 16]).long() for y, x in CORNERS])
    model = create_model("crisp_nano", num_classes=5, drop_path=0.0).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    first = last = None
    for _ in range(200):
        with torch.autocast("cpu", dtype=dtype):
            output = model(images)
        loss = segmentation_loss(output, target, LossConfig())["total"]
        assert loss.isfinite()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        last = loss.item()
        first = last if first is None else first
    assert all(p.isfinite().all() for p in model.parameters())
    assert last < 0.35 * first
    accuracy = (output.logits.argmax(1) == target).float().mean().item()
    assert accuracy > 0.9
