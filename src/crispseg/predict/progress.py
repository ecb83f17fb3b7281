"""A progress bar on standard error: pixels done, pixels per second, time left."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from crispseg.geo.scenes import Scene
from crispseg.predict.plan import Plan
from crispseg.predict.scene import Watcher


class _Speed(ProgressColumn):
    """Pixels of the scene per second."""

    def render(self, task: Task) -> Text:
        speed = task.speed or 0.0
        return Text(f"{speed / 1e6:.2f} Mpx/s" if speed else "", style="progress.data.speed")


class Bar(Watcher):
    """Shows one scene at a time; as a context manager it ends the drawing."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            _Speed(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            speed_estimate_period=300,  # tiles are slow on a CPU
        )
        self.task: Any = None
        self.pixels_per_tile = 0.0

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def begin(self, scene: Scene, plan: Plan, tiles_done: int) -> None:
        if self.task is not None:
            self.progress.remove_task(self.task)
        pixels = scene.grid.height * scene.grid.width
        self.pixels_per_tile = pixels / plan.tiles
        self.task = self.progress.add_task(scene.path, total=pixels, completed=round(tiles_done * self.pixels_per_tile))

    def tile_done(self) -> None:
        self.progress.advance(self.task, self.pixels_per_tile)

    def say(self, what: str) -> None:
        self.console.print(what, markup=False, highlight=False, soft_wrap=True)
