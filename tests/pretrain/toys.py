"""Small sets of pictures in the layouts that pretraining reads, and the smallest backbone."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

OPTIONS = {"width": 8, "depths": [1, 1, 1, 1], "heads": [1, 1, 2, 2], "state": 4, "drop_path": 0.0}


def picture(label: int, number: int, size: int = 32) -> np.ndarray:
    """Stripes whose direction and colour tell the class."""
    draws = np.random.default_rng([label, number])
    rows, columns = np.mgrid[:size, :size]
    phase = draws.integers(0, 8)
    stripes = ((rows if label % 2 else columns) + phase) // 4 % 2
    colour = np.array([[220, 60, 60], [60, 60, 220], [60, 200, 60]])[label % 3]
    image = stripes[..., None] * colour + draws.integers(0, 30, (size, size, 3))
    return image.astype(np.uint8)


def class_folders(root: Path, classes: int = 3, count: int = 12, size: int = 32) -> Path:
    for label in range(classes):
        folder = root / f"kind{label}"
        folder.mkdir(parents=True)
        for number in range(count):
            Image.fromarray(picture(label, number, size)).save(folder / f"p{number}.png")
    return root


def shard(path: Path, labels: list[int], size: int = 32) -> None:
    parts = []
    for number, label in enumerate(labels):
        buffer = io.BytesIO()
        Image.fromarray(picture(label, number, size)).save(buffer, "webp", quality=80)
        parts.append(np.frombuffer(buffer.getvalue(), np.uint8))
    offsets = np.cumsum([0, *map(len, parts)])
    np.savez(path, data=np.concatenate(parts), offsets=offsets.astype(np.int64), labels=np.array(labels, np.uint8))


def shards(root: Path, classes: int = 2) -> Path:
    root.mkdir(parents=True)
    shard(root / "train_0.npz", [i % classes for i in range(10)])
    shard(root / "train_1.npz", [i % classes for i in range(6)])
    shard(root / "val.npz", [i % classes for i in range(6)])
    (root / "classes.txt").write_text("".join(f"n{i}\tkind {i}\n" for i in range(classes)))
    return root


def settings(out: Path, *sets: dict, **more: object) -> dict[str, object]:
    """Plain config values of a small run."""
    return {
        "sets": list(sets),
        "model": {"name": "vssd_nano", "options": OPTIONS},
        "schedule": {"steps": 12},
        "sizes": [32],
        "batch_size": 8,
        "ema": 0.9,
        "score_every": 6,
        "save_every": 4,
        "log_every": 3,
        "device": "cpu",
        "out": str(out),
        **more,
    }
