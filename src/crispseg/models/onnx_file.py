"""An ONNX file as a model like any other, run by onnxruntime: for predict, eval and bench."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from crispseg.errors import UserError
from crispseg.models.base import SegmentationModel
from crispseg.models.onnx_card import INPUT, OUTPUTS, read_metadata
from crispseg.reading import reason, require_file


def load_onnx(path: str | os.PathLike[str]) -> OnnxModel:
    """The model in an ONNX file written by `crisp export`."""
    require_file(path, "ONNX file")
    return OnnxModel(Path(path).read_bytes(), os.fspath(path))


class OnnxModel(SegmentationModel):
    """Takes raw pixels: normalisation is in the graph. Keeps the file's bytes, so that it travels to other processes.

    Sessions are made when first needed, one for each number of threads, as torch is told how many to use.
    """

    normalises = True
    digest: Tensor

    def __init__(self, content: bytes, where: str) -> None:
        super().__init__()
        self.content, self.where = content, where
        self.card = read_metadata(self._metadata(), where)
        if self.card.output == "argmax":
            raise UserError(
                f"{where} gives class ids alone; tiles are blended from scores: export it with --output logits"
            )
        self._check_ends()
        self.name, self.options = self.card.name, {}
        self.num_classes, self.in_channels = self.card.num_classes, self.card.in_channels
        self.info = dataclasses.replace(self.card.info, temperature=1.0)  # the graph has divided by it already
        # tells this file from others wherever weights are compared
        digest = hashlib.sha256(content).digest()
        self.register_buffer("digest", torch.frombuffer(bytearray(digest), dtype=torch.uint8))
        self.eval()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_sessions", "_lock")}

    def train(self, mode: bool = True) -> OnnxModel:
        if mode:
            raise UserError(
                f"{self.where} is an exported model, which only evaluates; train the model it was made from"
            )
        return super().train(False)

    def fused(self, precision: torch.dtype | None = None, graphs: bool = True) -> Any:
        """Itself: onnxruntime has made it as fast as it can."""
        return self

    def save(self, folder: str | os.PathLike[str]) -> None:
        raise UserError(f"{self.where} is an exported model: copy the file, or save the model it was made from")

    def forward(self, image: Tensor) -> Tensor:
        batch, height, width = self.card.size
        if (height or image.shape[2]) < image.shape[2] or (width or image.shape[3]) < image.shape[3]:
            tile = min(height or 0, width or 0)
            raise UserError(
                f"{self.where} was exported for images of {width} x {height} px; use --tile {tile}, with crisp analyze "
                f"--limit {tile}"
            )
        whole = _filled(image, height or image.shape[2], width or image.shape[3])
        parts = [self._run(part) for part in whole.split(batch or len(whole))]
        scores = torch.cat(parts)[: len(image), :, : image.shape[2], : image.shape[3]]
        return scores.log() if self.card.output == "softmax" else scores

    @property
    def parameter_count(self) -> int:
        import onnx

        tensors = onnx.load_from_string(self.content).graph.initializer
        return sum(int(np.prod(tensor.dims)) for tensor in tensors)

    def _run(self, image: Tensor) -> Tensor:
        batch = self.card.size[0] or len(image)
        pixels = functional.pad(image, (0, 0, 0, 0, 0, 0, 0, batch - len(image)))
        (found,) = self._session(image.is_cuda).run(None, {INPUT: pixels.float().cpu().numpy()})
        return torch.from_numpy(found).to(image.device)

    def _metadata(self) -> dict[str, str]:
        try:
            return dict(self._session().get_modelmeta().custom_metadata_map)
        except UnicodeDecodeError as error:
            raise UserError(f"{self.where} is damaged: what it says of itself is no text") from error

    def _check_ends(self) -> None:
        """Whoever rewrites a file keeps its card, whatever becomes of the graph."""
        session = self._session()
        ends = [[(end.name, *end.shape[1:2]) for end in side] for side in (session.get_inputs(), session.get_outputs())]
        taken, given = [(INPUT, self.card.in_channels)], [(OUTPUTS[self.card.output], self.card.num_classes)]
        if ends != [taken, given]:
            raise UserError(
                f"{self.where} is not as `crisp export` wrote it: its graph takes {_told(ends[0])} and gives "
                f"{_told(ends[1])}, and its card says {_told(taken)} and {_told(given)}; export the model again"
            )

    def _session(self, cuda: bool = False) -> Any:
        sessions = self.__dict__.setdefault("_sessions", {})
        lock = self.__dict__.setdefault("_lock", threading.Lock())
        key = (torch.get_num_threads(), cuda)
        with lock:
            if key not in sessions:
                sessions[key] = open_session(self.content, self.where, *key)
        return sessions[key]


def open_session(content: bytes, where: str, threads: int, cuda: bool = False) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError(f"{where} is run by onnxruntime: pip install 'crispseg[export]'") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # cores are shared with who reads tiles
    options.log_severity_level = 4  # it raises what matters
    wanted = ("CUDAExecutionProvider",) * cuda + ("CPUExecutionProvider",)
    providers = [name for name in wanted if name in onnxruntime.get_available_providers()]
    try:
        return onnxruntime.InferenceSession(content, options, providers=providers)
    except Exception as error:  # its exceptions have no other base
        raise UserError(f"{where} is damaged, or no ONNX file ({reason(error)})") from error


def _told(ends: list[tuple[Any, ...]]) -> str:
    return ", ".join(" of ".join(map(str, end)) for end in ends) or "nothing"


def _filled(image: Tensor, height: int, width: int) -> Tensor:
    """Images smaller than the exported size, filled up by their last rows and columns."""
    below, right = height - image.shape[2], width - image.shape[3]
    return functional.pad(image, (0, right, 0, below), mode="replicate") if below or right else image
