"""Int8 by onnxruntime's static quantisation: weights per channel, activations in ranges seen on a folder's images.

Only layers with weights become int8 (convolutions and products with a constant). The sums over tokens, the norms and
the matching of prototypes stay in float32: they are a small part of the work, and eight bits would drown them.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from crispseg.errors import UserError
from crispseg.export.windows import Labelled, Windows
from crispseg.files import explaining
from crispseg.metrics import ConfusionMatrix
from crispseg.models.onnx_card import INPUT
from crispseg.models.onnx_file import open_session

if TYPE_CHECKING:
    import onnx

_LAYERS = ("Conv", "MatMul", "Gemm")


class Loss(NamedTuple):
    """mIoU before and after, in per cent; before is None where there are no labels."""

    before: float | None
    after: float
    scored_on: str

    @property
    def points(self) -> float:
        return (100.0 if self.before is None else self.before) - self.after

    def sentence(self) -> str:
        if self.before is None:
            return f"int8 agrees with float32 to an mIoU of {self.after:.2f} on {self.scored_on}"
        return (
            f"int8 mIoU {self.after:.2f}, float32 {self.before:.2f}: {self.points:+.2f} points lost on {self.scored_on}"
        )


def quantise(model: onnx.ModelProto, windows: Sequence[Labelled]) -> onnx.ModelProto:
    """The model with its layers in int8."""
    import onnx
    from onnxruntime import quantization

    root = logging.getLogger()
    before = root.level
    with tempfile.TemporaryDirectory(prefix="crisp-int8-") as folder, explaining(folder):
        plain, made = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(model, plain)
        try:
            root.setLevel(logging.ERROR)  # it warns at the root
            quantization.quantize_static(
                str(plain),
                str(made),
                _Reader(windows, model.graph.input[0].type.tensor_type.shape.dim[0].dim_value),
                quant_format=quantization.QuantFormat.QDQ,
                op_types_to_quantize=list(_LAYERS),
                nodes_to_exclude=left_alone(model),
                per_channel=True,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
            )
        finally:
            root.setLevel(before)
        return onnx.load(made)


def left_alone(model: onnx.ModelProto) -> list[str]:
    """The layers that stay in float32: products of two activations, and those with a stack of matrices, for which
    onnxruntime has no scale per channel."""
    ranks = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    wanted = {"Conv": 4, "MatMul": 2, "Gemm": 2}
    return [
        node.name
        for node in model.graph.node
        if node.op_type in wanted and ranks.get(node.input[1], 0) != wanted[node.op_type]
    ]


class _Reader:
    """Hands out one window after the other; onnxruntime wants `get_next` and, between rounds, `rewind`."""

    def __init__(self, windows: Sequence[Labelled], batch: int) -> None:
        self.windows, self.batch = windows, batch
        self.rewind()

    def rewind(self) -> None:
        self._rest: Iterator[Labelled] = iter(self.windows)

    def get_next(self) -> dict[str, Any] | None:
        window = next(self._rest, None)
        return None if window is None else _fed(window, self.batch)

    def __len__(self) -> int:
        return len(self.windows)


def _fed(window: Labelled, batch: int) -> dict[str, Any]:
    """What a graph for `batch` images (0: for any number) is given to see one window."""
    return {INPUT: np.repeat(window.image, batch or 1, axis=0)}


def measure_loss(before: bytes, after: bytes, windows: Windows, classes: int) -> Loss:
    """mIoU of both on the scoring windows; where no pixel is labelled, of the second against the first."""
    counts = {key: ConfusionMatrix(classes) for key in ("before", "after", "agreement")}
    sessions = [open_session(content, "the exported model", torch.get_num_threads()) for content in (before, after)]
    batch = sessions[0].get_inputs()[0].shape[0]
    for window in windows.scoring:
        fed = _fed(window, batch if isinstance(batch, int) else 0)
        maps = [np.argmax(session.run(None, fed)[0][0], 0).astype(np.uint8) for session in sessions]
        counts["agreement"].update(*map(torch.from_numpy, (maps[1], maps[0])))
        if window.labels is not None:
            truth = torch.from_numpy(np.ascontiguousarray(window.labels))
            counts["before"].update(torch.from_numpy(maps[0]), truth)
            counts["after"].update(torch.from_numpy(maps[1]), truth)
    scores = {key: 100 * matrix.scores().miou for key, matrix in counts.items()}
    if not math.isnan(scores["before"]):
        return Loss(scores["before"], scores["after"], windows.scored_on)
    return Loss(None, scores["agreement"], windows.scored_on)


def refuse_loss(loss: Loss, most: float) -> None:
    if not loss.points <= most:
        raise UserError(
            f"{loss.sentence()}; allowed are {most:g} (--max-loss); calibrate on more like what it will see"
        )
