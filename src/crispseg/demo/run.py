"""Trains crisp_nano for about a minute on a generated scene and draws another scene before and after."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crispseg.demo import scene
from crispseg.files import replacing
from crispseg.losses import LossConfig, segmentation_loss
from crispseg.models.base import ModelInfo, SegmentationModel
from crispseg.models.registry import create_model

CROP, BATCH, SCENE = 96, 8, 384


def run_demo(out: str | Path, seconds: float = 60.0, seed: int = 0) -> dict[str, float]:
    """Write `out`/before_after.png and `out`/model; returns the scores on a scene not trained on."""
    out = Path(out)
    torch.manual_seed(seed)
    model = create_model("crisp_nano", num_classes=len(scene.CLASSES), drop_path=0.0)
    training = [scene.generate(SCENE, SCENE, seed=s) for s in range(1, 5)]
    image, truth = scene.generate(SCENE, SCENE, seed=99)
    pixels = np.concatenate([x.reshape(-1, 3) for x, _ in training])
    model.info = ModelInfo(
        classes=scene.CLASSES,
        palette=scene.PALETTE,
        bands=("red", "green", "blue"),
        mean=tuple(pixels.mean(0).tolist()),
        std=tuple(pixels.std(0).tolist()),
        training_data="generated scenes (crispseg.demo.scene)",
        notes="A demonstration: it has never seen a real image.",
    )
    before = _segment(model, image)
    steps = _train(model, training, seconds, seed)
    after = _segment(model, image)
    scores = {"before": _miou(before, truth), "after": _miou(after, truth), "steps": float(steps)}
    _draw(out / "before_after.png", image, truth, before, after)
    model.save(out / "model")
    return scores


def _train(
    model: SegmentationModel, training: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]], seconds: float, seed: int
) -> int:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    model.train()
    start, steps = time.monotonic(), 0
    columns = (
        TextColumn("training crisp_nano"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        bar = progress.add_task("", total=seconds, loss=float("nan"))
        for images, labels in _batches(model, training, seed):
            spent = time.monotonic() - start
            if spent >= seconds and steps:
                break
            for group in optimizer.param_groups:  # warm up briefly, then fall with the time that is left
                group["lr"] = 2e-3 * min(1.0, (steps + 1) / 10) * max(0.02, 1 - spent / max(seconds, 1e-9))
            loss = segmentation_loss(model(images), labels, LossConfig())["total"]
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            steps += 1
            progress.update(bar, completed=spent, loss=loss.item())
        progress.update(bar, completed=seconds)
    model.eval()
    return steps


def _batches(
    model: SegmentationModel, training: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]], seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of random crops, flipped and turned at random."""
    rng = np.random.default_rng(seed)
    while True:
        images, labels = [], []
        for _ in range(BATCH):
            image, truth = training[rng.integers(len(training))]
            y, x = rng.integers(0, SCENE - CROP, 2)
            turns, flip = int(rng.integers(4)), bool(rng.integers(2))
            crop, target = (
                np.rot90(a[y : y + CROP, x : x + CROP], turns)[:, :: -1 if flip else 1] for a in (image, truth)
            )
            images.append(_normalised(model, crop))
            labels.append(torch.from_numpy(target.astype(np.int64)))
        yield torch.stack(images), torch.stack(labels)


def _normalised(model: SegmentationModel, image: NDArray[np.uint8]) -> Tensor:
    values = (image - np.array(model.info.mean, np.float32)) / np.array(model.info.std, np.float32)
    return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1)))


def _segment(model: SegmentationModel, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    with torch.no_grad():
        return model.eval()(_normalised(model, image)[None]).argmax(1)[0].numpy().astype(np.uint8)


def _miou(predicted: NDArray[np.uint8], truth: NDArray[np.uint8]) -> float:
    ious = [
        ((predicted == c) & (truth == c)).sum() / max(((predicted == c) | (truth == c)).sum(), 1)
        for c in range(len(scene.CLASSES))
    ]
    return float(np.mean(ious))


def _draw(path: Path, image: NDArray[np.uint8], *maps: NDArray[np.uint8]) -> None:
    """image | truth | before | after, with captions."""
    from PIL import Image, ImageDraw

    palette = np.array(scene.PALETTE, np.uint8)
    panels = [image, *(palette[labels] for labels in maps)]
    gap, caption = 8, 20
    height, width = image.shape[:2]
    canvas = Image.new("RGB", (len(panels) * (width + gap) - gap, height + caption), "white")
    draw = ImageDraw.Draw(canvas)
    for i, (panel, name) in enumerate(
        zip(panels, ("scene", "truth", "before training", "after training"), strict=True)
    ):
        canvas.paste(Image.fromarray(panel), (i * (width + gap), caption))
        draw.text((i * (width + gap) + 4, 4), name, fill="black")
    with replacing(path) as aside:
        canvas.save(aside, format="PNG")
