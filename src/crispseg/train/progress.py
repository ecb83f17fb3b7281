"""What a person watching sees: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

from crispseg.metrics.words import percent


class Progress:
    """Loss, score (mIoU), images per second and time left. Silent in all processes but the first."""

    def __init__(self, total: int, done: int, silent: bool, score: str = "mIoU") -> None:
        self.total, self.silent, self.score_name = total, silent, score
        self.score: float | None = None
        self._start, self._first = time.monotonic(), done
        self._bar: Any = None if silent or not sys.stderr.isatty() else _rich_bar(total, done)

    def count_from(self, done: int) -> None:
        """The time left is judged by the steps after this one: the first also sets everything up."""
        self._start, self._first = time.monotonic(), done

    def update(self, done: int, loss: float, images_per_second: float) -> None:
        if self.silent:
            return
        text = f"loss {loss:.4f}  {self.score_name} {percent(self.score)}  {images_per_second:.1f} img/s"
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, said=text)
        else:
            self.say(f"step {done}/{self.total}  {text}  {self._time_left(done)} left")

    def warn(self, text: str) -> None:
        """What the user must know, silent or not; an empty text is no warning."""
        if text:
            self._print(f"warning: {text}")

    def say(self, text: str) -> None:
        if not self.silent:
            self._print(text)

    def _print(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def _time_left(self, done: int) -> str:
        made = max(done - self._first, 1)
        seconds = round((time.monotonic() - self._start) / made * (self.total - done))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _rich_bar(total: int, done: int) -> Any:
    from rich import progress
    from rich.console import Console

    bar = progress.Progress(
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[said]}"),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    bar.add_task("training", total=total, completed=done, said="starting")
    bar.start()
    return bar
