"""A progress bar on standard error: windows done and time left; a plain line where nobody watches a terminal."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from crispseg.evaluate.run import Progress


class Bar(Progress):
    """One evaluation at a time; as a context manager it ends the drawing."""

    def __init__(self, title: str, silent: bool = False) -> None:
        console = Console(stderr=True)
        self.title, self.silent = title, silent
        self.terminal = console.is_terminal and not silent
        self.drawing = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not self.terminal,
            speed_estimate_period=300,  # windows are slow on a CPU
        )
        self.task: TaskID | None = None

    def __enter__(self) -> Bar:
        self.drawing.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.drawing.stop()

    def begin(self, windows: int) -> None:
        self.task = self.drawing.add_task(self.title, total=windows)
        if not self.terminal and not self.silent:
            print(f"evaluating {self.title}: {windows} windows", file=sys.stderr, flush=True)

    def window_done(self) -> None:
        assert self.task is not None
        self.drawing.advance(self.task)
