"""Progress on standard error: a bar on a terminal, a line now and then in a log file."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from crispseg.geo.scenes import Scene
from crispseg.predict.plan import ScenePlan
from crispseg.predict.scene import Watcher

_SECONDS_BETWEEN_LINES = 30.0


class _Speed(ProgressColumn):
    """Pixels of the scene per second."""

    def render(self, task: Task) -> Text:
        speed = task.speed or 0.0
        return Text(f"{speed / 1e6:.2f} Mpx/s" if speed else "", style="progress.data.speed")


class Bar(Watcher):
    """Shows one scene at a time; as a context manager it ends the drawing. `silent` shows nothing but warnings;
    `as_one` says that scenes are run as one image, without tiles."""

    def __init__(
        self,
        console: Console | None = None,
        silent: bool = False,
        every: float = _SECONDS_BETWEEN_LINES,
        as_one: bool = False,
    ) -> None:
        self.console = console or Console(stderr=True)
        self.silent, self.every, self.as_one = silent, every, as_one
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            _Speed(),
            TimeRemainingColumn(),
            console=self.console,
            disable=silent or not self.console.is_terminal,
            speed_estimate_period=300,  # tiles are slow on a CPU
        )
        self.task: Any = None
        self.pixels_per_tile = 0.0
        self.lines: _Lines | None = None

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def begin(self, scene: Scene, plan: ScenePlan, tiles_done: int) -> None:
        if self.task is not None:
            self.progress.remove_task(self.task)
        pixels = scene.grid.height * scene.grid.width
        self.pixels_per_tile = pixels / plan.tiles
        self.task = self.progress.add_task(scene.path, total=pixels, completed=round(tiles_done * self.pixels_per_tile))
        if self.progress.disable and not self.silent:
            self.lines = _Lines(scene.path, plan.tiles, tiles_done, self.pixels_per_tile, self.every)
            self.say(f"{scene.path}: as one image" if self.as_one else self.lines.first())

    def tile_done(self) -> None:
        self.progress.advance(self.task, self.pixels_per_tile)
        if self.lines is not None and (line := self.lines.after_tile()):
            self.say(line)

    def say(self, what: str) -> None:
        if not self.silent:
            self.warn(what)

    def warn(self, what: str) -> None:
        self.console.print(what, markup=False, highlight=False, soft_wrap=True)


class _Lines:
    """What a log says of a scene: where it starts, and then a line every so many seconds."""

    def __init__(self, path: str, tiles: int, done: int, pixels_per_tile: float, every: float) -> None:
        self.path, self.tiles, self.done, self.pixels_per_tile, self.every = path, tiles, done, pixels_per_tile, every
        self.before, self.warm = done, False
        self.start = self.said = time.monotonic()

    def first(self) -> str:
        earlier = f", {self.done} of them done before" if self.done else ""
        return f"{self.path}: {self.tiles} tile{'s' * (self.tiles > 1)}{earlier}"

    def after_tile(self) -> str:
        """A line, when one is due."""
        self.done += 1
        now = time.monotonic()
        speed = (self.done - self.before) / max(now - self.start, 1e-9)  # tiles per second
        if not self.warm:  # the first tile also sets everything up: the next ones are judged by those after it
            self.before, self.start, self.warm = self.done, now, True
        if now - self.said < self.every:
            return ""
        self.said = now
        left = (self.tiles - self.done) / speed
        return (
            f"{self.path}: {100 * self.done / self.tiles:.0f} %, {speed * self.pixels_per_tile / 1e6:.2f} Mpx/s, "
            f"{left // 60:.0f} min {left % 60:.0f} s left"
        )
