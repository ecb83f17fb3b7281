"""The scene as one image: no tiles, no seams; the network runs over bands of rows (see the exact room).

The stream goes from top to bottom and cannot start in the middle, so a run that was killed computes again and keeps
what its journal has; the bytes are the same.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crispseg.errors import UserError
from crispseg.exact import segment_stream
from crispseg.models.device import find_device
from crispseg.predict.evaluate import check_card
from crispseg.predict.work import Work
from crispseg.raster.products import NODATA, SURE, Band
from crispseg.raster.source import Window

_WAITING = 2  # finished bands that may wait to be written


class ExactEngine:
    """This process, with the whole scene as one image. Feature maps that do not fit in memory go to nameless files in
    the folder `spill`, or in the system's for temporary files."""

    def __init__(self, spill: Path | None = None) -> None:
        self.spill = spill

    def bands(self, work: Work, runs: list[range], on_tile: Callable[[], None]) -> Generator[Band]:
        wanted = {strip for run in runs for strip in run}
        if not wanted:
            return
        finished: queue.Queue[Band | BaseException | None] = queue.Queue(_WAITING)
        stop = threading.Event()
        thread = threading.Thread(target=self._stream, args=(work, wanted, finished, stop), name="crisp-exact")
        thread.start()
        try:
            while (item := finished.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                for _ in work.plan.cols.starts:
                    on_tile()
                yield item
        finally:
            stop.set()
            while thread.is_alive():  # it may wait for room in the queue
                _drain(finished)
                thread.join(0.05)

    def close(self) -> None:
        """Nothing outlives `bands`."""

    def _stream(self, work: Work, wanted: set[int], finished: queue.Queue[Any], stop: threading.Event) -> None:
        try:
            assembler = _Assembler(work, wanted, finished, stop)
            segment_stream(
                work.model.to(find_device(work.settings.device)).eval(),
                _reader(work),
                work.source.height,
                work.source.width,
                assembler.take,
                spill=self.spill,
            )
            finished.put(None)
        except _Stopped:
            pass
        except BaseException as error:  # handed over to the thread that asked
            finished.put(error)


class _Stopped(Exception):
    """The bands are no longer wanted."""


class _Assembler:
    """Collects rows of logits into the plan's bands, masks them and hands them on."""

    def __init__(self, work: Work, wanted: set[int], finished: queue.Queue[Any], stop: threading.Event) -> None:
        self.work, self.wanted, self.finished, self.stop = work, wanted, finished, stop
        self.strip = 0
        self.rows: list[Band] = []

    def take(self, top: int, logits: Tensor) -> None:
        """Result rows (classes, rows, width), from top to bottom."""
        if self.stop.is_set():
            raise _Stopped
        while logits.shape[1]:
            end = self.work.plan.rows.finished(self.strip)[1]
            count = min(end - top, logits.shape[1])
            self.rows.append(self._maps(top, logits[:, :count]))
            top, logits = top + count, logits[:, count:]
            if top == end:
                self._hand_on()

    def _maps(self, top: int, logits: Tensor) -> Band:
        shares = self.work.model.probabilities(logits, dim=0)
        best, labels = shares.max(0)
        if not best.isfinite().all():
            raise UserError(f"the model gave no finite scores near row {top}; its weights may be damaged")
        absent = ~self.work.source.read(Window(top, 0, logits.shape[1], logits.shape[2])).present
        products = self.work.products
        return Band(
            self.strip,
            top,
            _masked(labels, absent),
            _masked(best * SURE + 0.5, absent) if products.confidence else None,
            _masked(shares * SURE + 0.5, absent) if products.probabilities else None,
        )

    def _hand_on(self) -> None:
        parts, self.rows = self.rows, []
        if self.strip in self.wanted:
            band = Band(self.strip, parts[0].top, np.concatenate([p.classes for p in parts]))
            if self.work.products.confidence:
                band.confidence = np.concatenate([p.confidence for p in parts if p.confidence is not None])
            if self.work.products.probabilities:
                pieces = [p.probabilities for p in parts if p.probabilities is not None]
                band.probabilities = np.concatenate(pieces, axis=1)
            self.finished.put(band)
        self.strip += 1


def _reader(work: Work) -> Callable[[int, int], Tensor]:
    """Rows of the scene, normalised as the model's card says; where the scene has no data, the bands' means."""
    check_card(work.model)
    normalisation = work.model.info.normalisation()

    def read(top: int, bottom: int) -> Tensor:
        values = work.source.read(Window(top, 0, bottom - top, work.source.width)).values
        return normalisation(torch.from_numpy(np.ascontiguousarray(values)).float())

    return read


def _masked(values: Tensor, absent: Any) -> Any:
    array = values.to(torch.uint8).cpu().numpy()
    array[..., absent] = NODATA
    return array


def _drain(waiting: queue.Queue[Any]) -> None:
    try:
        while True:
            waiting.get_nowait()
    except queue.Empty:
        pass
