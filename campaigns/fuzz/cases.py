"""One case: which file is damaged how, and what reading it comes to, all by the seed and the number of the case."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import shutil
import signal
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from campaigns.fuzz.fence import Escape, fenced
from campaigns.fuzz.mutate import mutate
from campaigns.fuzz.targets import Target, targets
from crispseg import memory
from crispseg.errors import UserError

SECONDS = 20  # of processor time, or of waiting for something that is not a processor: a loaded machine takes longer
BYTES = 2 << 30


class TooLong(BaseException):
    """Raised by the alarm; not an Exception, so that nothing takes it for damage."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    number: int
    target: str
    file: str
    mutation: str
    ended: str  # "read", "refused" or "fault"
    seconds: float = 0.0  # of processor time
    said: str = ""  # of a UserError, or the type and message of a fault
    place: str = ""  # of a fault


class Bench:
    """The sound folders of all targets, in `root`; runs cases one after the other."""

    def __init__(self, root: Path, seed: int, chosen: Sequence[str] = ()) -> None:
        self.seed = seed
        self.targets = [target for target in targets() if not chosen or target.name in chosen]
        if not self.targets:
            raise SystemExit(f"no target is called {', '.join(chosen)}; known: {', '.join(t.name for t in targets())}")
        self.places = {target.name: self._make(root, target) for target in self.targets}

    def _make(self, root: Path, target: Target) -> tuple[Path, Path]:
        """A sound copy, and one to damage: both at the same path when they are made, as some files hold paths."""
        work = root / target.name.replace(" ", "_")
        work.mkdir(parents=True)
        target.make(work)
        sound = root / "sound" / work.name
        shutil.copytree(work, sound, symlinks=True)
        target.read(work)  # what is sound can be read
        return sound, work

    def case(self, number: int) -> tuple[Target, str, str, bytes]:
        random = Random(f"{self.seed}/{number}")
        target = random.choices(self.targets, [target.share for target in self.targets])[0]
        file = random.choice(target.files)
        data = _named(self.places[target.name][0], file).read_bytes()
        mutation, damaged = mutate(random, file, data)
        return target, file, mutation, damaged

    def run(self, number: int) -> Outcome:
        target, file, mutation, damaged = self.case(number)
        sound, work = self.places[target.name]
        shutil.rmtree(work)
        shutil.copytree(sound, work, symlinks=True)
        _named(work, file).write_bytes(damaged)
        start = time.process_time()
        ended, said, place = _read(target, work)
        facts = (number, target.name, file, mutation, ended)
        return Outcome(*facts, round(time.process_time() - start, 3), said, place)


def _named(folder: Path, file: str) -> Path:
    """Files whose names are not known before they are made are named by number: `cache/0`."""
    path = folder / file
    if path.exists() or not path.name.isdecimal():
        return path
    return sorted(path.parent.iterdir())[int(path.name)]


def _read(target: Target, folder: Path) -> tuple[str, str, str]:
    """How it ended, what was said, and where."""
    memory.reset_peak()
    before = memory.resident()
    try:
        with _alarm(), warnings.catch_warnings(), fenced(folder):
            warnings.simplefilter("ignore")
            target.read(folder)
        ended = ("read", "", "")
    except UserError as error:
        said = str(error)
        ended = ("refused", said[:200], "") if said.strip() else ("fault", "a UserError without words", "")
    except TooLong as error:
        return (
            "fault",
            f"not done after {SECONDS} s of work or of waiting",
            _place(traceback.extract_tb(error.__traceback__)),
        )
    except (Exception, Escape) as error:  # what the campaign looks for
        words = " ".join(str(error).split())[:200]
        return "fault", f"{type(error).__name__}: {words}", _place(traceback.extract_tb(error.__traceback__))
    if memory.peak() - before > BYTES:
        return "fault", f"took {(memory.peak() - before) / 2**30:.1f} GiB", ""
    return ended


def _place(frames: traceback.StackSummary) -> str:
    """The innermost line of ours."""
    ours = [frame for frame in frames if f"{os.sep}crispseg{os.sep}" in frame.filename]
    if not ours:
        return ""
    return f"{ours[-1].filename.rpartition(f'{os.sep}crispseg{os.sep}')[2]}:{ours[-1].lineno}"


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    """Raise when the block has worked, or waited for what may never come, for too long."""
    began, worked, queued = time.monotonic(), time.process_time(), _queued()

    def ring(number: int, frame: FrameType | None) -> Any:
        work = time.process_time() - worked
        idle = time.monotonic() - began - work - (_queued() - queued)
        if work > SECONDS or idle > SECONDS:
            raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SECONDS / 4, SECONDS / 4)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _queued() -> float:
    """Seconds that the threads of this process were ready to run and had no processor."""
    total = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError, IndexError, ValueError):
            total += int((task / "schedstat").read_text().split()[1])
    return total / 1e9


def limit_memory() -> None:
    """From here on this process may take `BYTES` more."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, resource.RLIM_INFINITY))
