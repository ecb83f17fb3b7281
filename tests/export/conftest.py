import dataclasses

import pytest
import torch
from torch import nn

import crispseg
from crispseg.models.base import ModelInfo, SegmentationModel

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

CARD = ModelInfo(
    classes=("meadow", "water", "roof"),
    palette=((10, 200, 10), (0, 0, 250), (200, 30, 30)),
    bands=("red", "green", "blue"),
    mean=(90.0, 100.0, 80.0),
    std=(45.0, 60.0, 50.0),
    resolution=0.3,
)


class Small(SegmentationModel):
    """A network that is captured in a second, with what exporters stumble over: a BatchNorm that folds and one that
    does not, work in place, a resize to the image's size, a whole image's mean."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.norm, self.mix, self.drop = nn.BatchNorm2d(8), nn.Conv2d(8, 3, 1), nn.Dropout2d(0.1)

    def forward(self, image):
        x = self.down(image)
        x += nn.functional.adaptive_avg_pool2d(x, 1)
        x = self.mix(self.drop(1 - self.norm(x).sigmoid_()))
        return nn.functional.interpolate(x, size=image.shape[-2:], mode="bilinear", align_corners=False)


def described(model: SegmentationModel, name: str, **facts) -> SegmentationModel:
    """With a card, and running statistics that are not those it was born with."""
    model.train()
    with torch.no_grad():
        model(torch.randn(4, 3, 64, 64))
    model.name, model.options, model.num_classes, model.in_channels = name, {}, 3, 3
    model.info = dataclasses.replace(CARD, **facts)
    return model.eval()


def small_model(**facts) -> SegmentationModel:
    torch.manual_seed(3)
    return described(Small(), "small", **facts)


def small_crisp() -> SegmentationModel:
    torch.manual_seed(3)
    options = {"width": 16, "depths": (1, 1, 1, 1), "state": 8, "dim": 32, "mlp_dim": 32}
    return described(crispseg.create_model("crisp_nano", 3, 3, **options), "crisp_nano")


def raw_images(*shape: int) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(7)) * 50 + 90).clamp(0, 255).round()


def expected(model: SegmentationModel, image: torch.Tensor) -> torch.Tensor:
    """The model's logits of raw pixels, by hand."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (model.info.mean, model.info.std))
    with torch.no_grad():
        return model((image - mean) / std)


@pytest.fixture(scope="session")
def model() -> SegmentationModel:
    return small_model()


@pytest.fixture(scope="session")
def onnx_file(model, tmp_path_factory) -> str:
    """With any size, made once for all tests."""
    path = tmp_path_factory.mktemp("exported") / "model.onnx"
    crispseg.export(model, path)
    return str(path)
