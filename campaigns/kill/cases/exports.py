"""`crisp export`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from tests.train import tiny

from campaigns.kill.cases.base import Content, Files


def small_model(seed: int = 0) -> Any:
    """The smallest CRISP that is whole, with a card."""
    import crispseg
    from crispseg.models.base import ModelInfo

    torch.manual_seed(seed)
    model = crispseg.create_model("crisp_nano", num_classes=3, **tiny.OPTIONS).eval()
    model.info = ModelInfo(classes=("a", "b", "c"), mean=(15.0,) * 3, std=(8.0,) * 3)
    return model


class Export(Files):
    """To ONNX, for one size."""

    name, weight = "export", 1
    needs = ("crispseg.export.run", "onnx", "onnxscript", "onnxruntime", "torch.onnx._internal.exporter._core")

    def make(self, folder: Path) -> None:
        small_model().save(folder / "in" / "model")

    def change(self, folder: Path) -> None:
        shutil.rmtree(folder / "in" / "model")
        small_model(1).save(folder / "in" / "model")

    def run(self, folder: Path, existing: str) -> None:
        from crispseg.export.run import export

        choice: dict[str, Any] = {"size": (64, 64), "batch": 1}
        export(folder / "in" / "model", folder / "out" / "model.onnx", existing=existing, **choice)

    def content(self, folder: Path) -> Content:
        """The tensors and the nodes; names are the exporter's."""
        path = folder / "out" / "model.onnx"
        return {"model.onnx": path.read_bytes()} if path.exists() else {}

    def is_finished(self, folder: Path) -> bool:
        return (folder / "out" / "model.onnx").exists()
