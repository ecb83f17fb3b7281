"""A data folder of a few pixels and the smallest CRISP, so that a training takes a second."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from crispseg.models.base import ModelInfo, Output, SegmentationModel

OPTIONS = {
    "width": 8,
    "depths": [1, 1, 1, 1],
    "heads": [1, 1, 2, 2],
    "state": 4,
    "dim": 16,
    "attention_heads": 2,
    "mlp_dim": 16,
}


def make_folder(root: Path, count: int = 5, size: int = 40, bands: int = 3) -> Path:
    """Bright squares (class 1) on dark ground (class 0), with some ignored pixels; the last image validates."""
    draws = np.random.default_rng(0)
    (root / "images").mkdir(parents=True)
    (root / "masks").mkdir()
    rows = ["name,split"]
    for i in range(count):
        mask = (draws.random((size // 8, size // 8)) > 0.5).astype(np.uint8).repeat(8, 0).repeat(8, 1)
        image = mask[..., None] * 120 + draws.integers(20, 60, (size, size, bands))
        mask[draws.random(mask.shape) > 0.9] = 255
        Image.fromarray(image.astype(np.uint8)).save(root / "images" / f"scene{i}.png")
        Image.fromarray(mask).save(root / "masks" / f"scene{i}.png")
        rows.append(f"scene{i},{'val' if i == count - 1 else 'train'}")
    (root / "split.csv").write_text("\n".join(rows) + "\n")
    return root


def settings(data: Path, out: Path, **more: object) -> dict[str, object]:
    """Plain config values of a small run; `more` has top-level keys."""
    return {
        "data": {"path": str(data)},
        "model": {"name": "crisp_nano", "options": OPTIONS},
        "schedule": {"steps": 20},
        "optimizer": {"lr": 0.003},
        "batch_size": 4,
        "crop": 32,
        "val_every": 10,
        "save_every": 5,
        "log_every": 4,
        "samples": 1,
        "device": "cpu",
        "out": str(out),
        **more,
    }


class Plain(SegmentationModel):
    """A convolution with an auxiliary head and prototypes, and nothing that looks across images."""

    def __init__(self, classes: int = 3, bands: int = 2) -> None:
        super().__init__()
        self.backbone = nn.Conv2d(bands, 8, 3, padding=1)
        self.head = nn.Conv2d(8, classes, 1)
        self.auxiliary = nn.Conv2d(8, classes, 1)
        self.prototypes = nn.Linear(8, classes * 2 * 4)
        self.name, self.options = "plain", {}
        self.num_classes, self.in_channels = classes, bands
        self.info = ModelInfo(mean=(0.5,) * bands, std=(2.0,) * bands)

    def forward(self, image: torch.Tensor) -> torch.Tensor | Output:
        x = torch.relu(self.backbone(image))
        if not self.training:
            return self.head(x)
        prototypes = self.prototypes(x.mean((2, 3))).unflatten(-1, (self.num_classes, 2, 4))
        return Output(self.head(x), (self.auxiliary(x),), nn.functional.normalize(prototypes, dim=-1))


def weights_of(run: Path, name: str = "last.pt") -> dict[str, torch.Tensor]:
    return torch.load(run / name, weights_only=True)["model"]
